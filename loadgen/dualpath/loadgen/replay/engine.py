"""The replay itself: agents, each a task that sends turn after turn, in a closed or an open loop (paper, §6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from dualpath.loadgen.machine import describe_machine
from dualpath.loadgen.replay.arrivals import arrivals
from dualpath.loadgen.replay.collector import quiet_collector
from dualpath.loadgen.replay.contexts import CONTEXTS, Context, Dialect
from dualpath.loadgen.replay.errors import ReplayError, TurnError
from dualpath.loadgen.replay.lag import LagMeter
from dualpath.loadgen.replay.options import ClosedLoop, Load, OpenLoop, StopRules, Target
from dualpath.loadgen.replay.pool import Pool
from dualpath.loadgen.replay.probe import probe
from dualpath.loadgen.replay.progress import Progress
from dualpath.loadgen.replay.records import STOPPED, AgentRecord, ReplayResult, TurnRecord
from dualpath.loadgen.replay.rules import Judge
from dualpath.loadgen.replay.turns import Turns
from dualpath.loadgen.traces.model import Trace, Trajectory
from dualpath.tasks import stop as stop_task

_PROGRESS_S = 1.0
_SHORTEST_TICK_S = 0.01
_RECENT_S = 10.0
_NEVER = StopRules(ttft_s=None, lookback_s=float("inf"))


async def replay(
    trace: Trace,
    target: Target,
    load: Load,
    *,
    stop: StopRules | None = None,
    keep_ids: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    interrupt: asyncio.Event | None = None,
) -> ReplayResult:
    """Replay a trace against a server.

    An agent whose turn fails ends there; the others go on. `stop` ends an open loop by the paper's rules, and any
    loop at its `max_s`. Once `interrupt` is set, the replay ends and its result is what was found so far.
    `on_progress` is called once a second. `keep_ids` keeps generated token ids in the records, where there are any.

    Raises ReplayError where the replay cannot begin. When cancelled, every stream has ended, at the server too."""
    endless = isinstance(load, OpenLoop) and load.agents is None and load.aps is not None
    if endless and stop is None and interrupt is None:
        raise ReplayError("an open loop without an end needs agents, or rules when to stop")
    pool = Pool(target)
    try:
        dialect = await probe(pool, target, trace)
        run = _Run(trace, target, load, stop, pool, dialect, keep_ids=keep_ids)
        return await run.result(on_progress, interrupt)
    finally:
        await pool.close()


class _Run:
    def __init__(
        self,
        trace: Trace,
        target: Target,
        load: Load,
        stop: StopRules | None,
        pool: Pool,
        dialect: Dialect,
        *,
        keep_ids: bool,
    ) -> None:
        self._trace, self._target, self._load, self._stop = trace, target, load, stop
        self._pool, self._dialect, self._keep_ids = pool, dialect, keep_ids
        self._judge = Judge(stop or _NEVER)
        self._agents: list[AgentRecord] = []
        self._ended = 0
        self._turns_done = self._generated = self._errors = 0
        self._turns: Turns
        self._settings = {
            "trace": {
                "name": trace.name,
                "source": trace.source,
                "seed": trace.seed,
                "trajectories": len(trace),
                "turns": trace.turns,
            },
            "target": {**asdict(replace(target, api_key=None)), "api_key": bool(target.api_key)},
            "dialect": dialect.as_dict(),
            "load": {"loop": "closed" if isinstance(load, ClosedLoop) else "open", **asdict(load)},
            "stop": None if stop is None else asdict(stop),
            "machine": describe_machine(),
        }

    async def result(
        self, on_progress: Callable[[Progress], None] | None, interrupt: asyncio.Event | None
    ) -> ReplayResult:
        prepared: list[tuple[Trajectory, Context, bytes]] = []
        if isinstance(self._load, ClosedLoop):
            prepared = await self._prepared(self._load.agents)
        with quiet_collector():
            began_unix_s = time.time()
            self._turns = Turns(
                self._pool,
                self._target,
                time.monotonic(),
                self._judge.first_token,
                keep_ids=self._keep_ids,
            )
            meter = LagMeter()
            measuring = asyncio.create_task(meter.run(), name="lag")
            driver = asyncio.create_task(
                self._closed(prepared) if prepared else self._open(), name="agents"
            )
            try:
                ended = await self._watch(driver, meter, on_progress, interrupt)
            finally:
                await stop_task(driver)
                await stop_task(measuring)
            duration_s = self._turns.now_s()
        window_s = (0.0, duration_s)
        if self._stop is not None and isinstance(self._load, OpenLoop):
            window_s = (max(duration_s - self._stop.window_s, 0.0), duration_s)
        return ReplayResult(
            turns=self._turns.records,
            agents=self._agents,
            lag=meter.found(self._turns.records),
            ended=ended,
            began_unix_s=began_unix_s,
            duration_s=duration_s,
            prompts=self._dialect.prompts,
            model=self._dialect.model,
            retries=dict(self._turns.retries),
            window_s=window_s,
            settings=self._settings,
        )

    # ── the loops ──────────────────────────────────────────────────────────────────────────────────
    async def _prepared(self, agents: int) -> list[tuple[Trajectory, Context, bytes]]:
        """First requests and connections, so that all can start at once."""
        prepared = []
        for number, trajectory in enumerate(self._trace.agents(agents)):
            context = self._context(trajectory, number)
            prepared.append((trajectory, context, self._request(context, 0)))
            if number % 64 == 63:
                await asyncio.sleep(0)
        try:
            await self._pool.open(min(agents, self._target.max_connections))
        except TurnError as error:
            raise ReplayError(error.detail) from error
        return prepared

    async def _closed(self, prepared: list[tuple[Trajectory, Context, bytes]]) -> None:
        async with asyncio.TaskGroup() as group:
            while prepared:
                number = len(self._agents)
                trajectory, context, request = prepared.pop(0)
                record = self._arrived(number, trajectory, 0.0)
                group.create_task(self._agent(record, trajectory, context, request))

    async def _open(self) -> None:
        assert isinstance(self._load, OpenLoop)
        async with asyncio.TaskGroup() as group:
            for number, due_s in enumerate(arrivals(self._trace, self._load)):
                trajectory = self._trace.agent(number)
                context = self._context(trajectory, number)
                request = self._request(context, 0)
                await self._until(due_s)
                record = self._arrived(number, trajectory, due_s)
                group.create_task(self._agent(record, trajectory, context, request))

    def _context(self, trajectory: Trajectory, number: int) -> Context:
        kind = CONTEXTS[self._dialect.prompts]
        return kind(self._trace, trajectory, self._target, self._dialect, number)

    def _request(self, context: Context, turn: int) -> bytes:
        return self._pool.request("POST", context.path, context.request(turn))

    def _arrived(self, number: int, trajectory: Trajectory, due_s: float) -> AgentRecord:
        record = AgentRecord(number, trajectory.name, len(trajectory.turns), due_s)
        self._agents.append(record)
        return record

    async def _until(self, due_s: float) -> None:
        if (wait_s := due_s - self._turns.now_s()) > 0:
            await asyncio.sleep(wait_s)

    # ── an agent ───────────────────────────────────────────────────────────────────────────────────
    async def _agent(
        self, record: AgentRecord, trajectory: Trajectory, context: Context, request: bytes
    ) -> None:
        record.error = STOPPED
        record.error = await self._life(record, trajectory, context, request)
        self._ended += 1

    async def _life(
        self, record: AgentRecord, trajectory: Trajectory, context: Context, request: bytes
    ) -> str:
        """All its turns; the error of the one that ended them early, or nothing."""
        due_s = record.due_s
        last = len(trajectory.turns) - 1
        for number, turn in enumerate(trajectory.turns):
            if number and turn.delay_s:
                await self._until(due_s)
            sent = TurnRecord(record.agent, number, context.tokens, turn.generate_tokens, due_s)
            answer = await self._turns.answer(sent, context, request)
            record.end_s = sent.end_s
            self._turns_done += 1
            if answer is None:
                self._errors += 1
                return sent.error
            self._generated += sent.generated_tokens
            record.answered += 1
            if number < last:
                due_s = sent.end_s + trajectory.turns[number + 1].delay_s
                context.answered(number, answer)
                request = self._request(context, number + 1)
        return ""

    # ── watching ───────────────────────────────────────────────────────────────────────────────────
    async def _watch(
        self,
        driver: asyncio.Task[None],
        meter: LagMeter,
        on_progress: Callable[[Progress], None] | None,
        interrupt: asyncio.Event | None,
    ) -> str:
        """Until the driver has ended, or something else ends the replay; which."""
        interrupted = asyncio.create_task((interrupt or asyncio.Event()).wait())
        try:
            shown_s = 0.0
            while True:
                await asyncio.wait(
                    {driver, interrupted},
                    timeout=self._tick_s(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                ending = driver.done() or interrupted.done()
                if on_progress is not None and (
                    ending or self._turns.now_s() - shown_s >= _PROGRESS_S
                ):
                    shown_s = self._turns.now_s()
                    on_progress(self._progress(meter))
                if driver.done():
                    await driver
                    return "done"
                if interrupted.done():
                    return "interrupted"
                if verdict := self._verdict():
                    return verdict
        finally:
            await stop_task(interrupted)

    def _tick_s(self) -> float:
        """Until the rules are looked at again."""
        if self._stop is None:
            return _PROGRESS_S
        tick_s = min(_PROGRESS_S, self._stop.window_s / 20)
        if self._stop.max_s is not None:
            tick_s = min(tick_s, self._stop.max_s - self._turns.now_s())
        return max(tick_s, _SHORTEST_TICK_S)

    def _verdict(self) -> str:
        if self._stop is None:
            return ""
        now_s = self._turns.now_s()
        if isinstance(self._load, ClosedLoop):
            return "max_s" if self._stop.max_s is not None and now_s >= self._stop.max_s else ""
        return self._judge.verdict(now_s, self._turns.waiting_s())

    def _progress(self, meter: LagMeter) -> Progress:
        now_s = self._turns.now_s()
        agents_all = self._load.agents
        if agents_all is None and isinstance(self._load, OpenLoop) and self._load.aps is None:
            agents_all = len(self._trace)
        return Progress(
            seconds=now_s,
            agents_started=len(self._agents),
            agents_ended=self._ended,
            agents_all=agents_all,
            turns=self._turns_done,
            turns_all=None if agents_all is None else self._turns_of(agents_all),
            errors=self._errors,
            retries=self._turns.retries.total(),
            in_flight=len(self._turns.open),
            generated_tokens=self._generated,
            ttft_s=self._judge.mean_since(now_s - _RECENT_S),
            lag_s=meter.recent_s(),
        )

    def _turns_of(self, agents: int) -> int:
        """Of that many agents together; a reused trajectory has one more."""
        laps, rest = divmod(agents, len(self._trace))
        firsts = sum(len(t.turns) for t in self._trace.trajectories[:rest])
        return laps * self._trace.turns + firsts + max(agents - len(self._trace), 0)
