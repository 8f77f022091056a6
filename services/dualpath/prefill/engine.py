"""A prefill engine: forms batches of what waits, runs forwards, gives each request its first token."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Coroutine
from itertools import count
from operator import attrgetter
from typing import Any

from dualpath.memory.admission import ring_bytes
from dualpath.policy.api import BatchPolicy, Waiting
from dualpath.prefill.forward import run_forward
from dualpath.prefill.request import PrefillRequest
from dualpath.prefill.row import EngineParts, ForwardRow
from dualpath.prefill.trace import ForwardTrace
from dualpath.tasks import finish
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import TransportError
from dualpath.wire.types import Sampled, TokenScores

log = get_logger(__name__)


class PrefillFailed(Exception):
    """A request could not be prefilled; the text says why. Another attempt may succeed."""


class _Job:
    """A request at the engine. `done` ends with its first token; `let_go` is set once the engine and its
    transfers touch nothing of the request any more."""

    def __init__(
        self, arrival: int, request: PrefillRequest, on_first: FirstToken, on_scores: OnScores
    ) -> None:
        self.arrival = arrival
        self.request = request
        self.on_first = on_first
        self.on_scores = on_scores
        self.done: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self.let_go = asyncio.Event()
        self.row: ForwardRow | None = None
        self.abandoned = False

    def end(self, outcome: Sampled | Exception) -> None:
        """The engine has let go of the request; what became of it matters only where somebody still waits."""
        self.let_go.set()
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


FirstToken = Callable[[Sampled], Coroutine[Any, Any, None]]
"""Called as soon as the first token is sampled, before the last KV has left."""

OnScores = Callable[[int, TokenScores], Coroutine[Any, Any, None]]
"""Called with the log-probabilities of prompt tokens from that number on, in order, all before the first token."""


async def _no_scores(start: int, scores: TokenScores) -> None:
    raise PrefillFailed("log-probabilities of the prompt came, which nobody asked for")


class PrefillEngine:
    """One engine of a node. `run` is its loop; `prefill` is what the requests' tasks await."""

    def __init__(
        self,
        parts: EngineParts,
        policy: BatchPolicy,
        *,
        on_forward: Callable[[int, float], None],
        number: int = 0,
        trace_log: bool = False,
    ) -> None:
        """`on_forward` is told of each forward's tokens and seconds; `number` counts within the node."""
        self.parts = parts
        self._policy = policy
        self._on_forward = on_forward
        self._number = number
        self._steps = 0
        self._trace_log = trace_log
        self._arrivals = count()
        self._waiting: list[_Job] = []
        """In the order of arrival: a request whose prompt goes on takes its old place."""
        self._draining: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.forwards = 0
        self.forward_tokens = 0

    async def prefill(
        self, request: PrefillRequest, on_first: FirstToken, on_scores: OnScores = _no_scores
    ) -> Sampled:
        """Compute the request's missing KV, all of it delivered to the DE when this returns.

        Raises PrefillFailed, and what `on_first` and `on_scores` raise. When this returns, raises or has been
        cancelled, the engine no longer touches the request.
        """
        job = _Job(next(self._arrivals), request, on_first, on_scores)
        self._waiting.append(job)
        self._wake.set()
        try:
            return await job.done
        finally:
            job.abandoned = True
            if job in self._waiting:
                self._waiting.remove(job)
                await finish(self._close_resident(request))
                job.let_go.set()
                # What it held, or its place at the head, may be what others wait for.
                self._wake.set()
            elif job.row is not None:
                job.row.fail(PrefillFailed("the request was aborted"))
            await finish(job.let_go.wait())

    async def run(self) -> None:
        """The engine's loop; ends only by cancellation, after its transfers have."""
        try:
            while True:
                self._wake.clear()
                jobs = self._select()
                if jobs or await self.parts.steps.begin(self._wake):
                    await self._forward(jobs)
        finally:
            await asyncio.gather(*self._draining, return_exceptions=True)

    # ── batches ────────────────────────────────────────────────────────────────────────────────────
    def _select(self) -> list[tuple[_Job, int]]:
        waiting = [self._cost(job.request) for job in self._waiting]
        counts = self._policy.select(waiting, self.parts.budget.free)
        chosen = list(zip(self._waiting, counts, strict=False))
        del self._waiting[: len(chosen)]
        return chosen

    def _cost(self, request: PrefillRequest) -> Waiting:
        geometry, parts = request.geometry, self.parts
        if parts.layerwise:
            return Waiting(
                cached=request.cached_tokens,
                new=request.new_tokens,
                hbm_fixed=ring_bytes(geometry, request.cached_tokens, parts.ring_depth),
                hbm_per_token=ring_bytes(geometry, 1, parts.ring_depth),
            )
        whole = ring_bytes(geometry, request.assign.prompt_tokens, parts.ring_depth)
        return Waiting(
            cached=request.cached_tokens,
            new=request.new_tokens,
            hbm_fixed=0 if request.resident is not None else whole,
        )

    async def _forward(self, jobs: list[tuple[_Job, int]]) -> None:
        self._steps += 1
        trace = ForwardTrace()
        trace.step = self._steps
        rows: list[ForwardRow] = []
        sampled: list[Sampled | None] = [None] * len(jobs)
        try:
            if jobs:
                await self.parts.steps.begin()
            for job, new in jobs:
                job.row = ForwardRow(job.request, new, self.parts, trace)
                rows.append(job.row)
            sampled = await run_forward(rows, self.parts, trace)
        except BaseException:
            stopped = PrefillFailed("the prefill engine stopped")
            for row in rows:
                row.fail(stopped)
            for job, _ in jobs[len(rows) :]:
                job.end(stopped)
            raise
        finally:
            if rows:
                tokens = sum(row.new for row in rows)
                self.forwards += 1
                self.forward_tokens += tokens
                self._on_forward(tokens, trace.seconds())
            # Where a row could not be made there are fewer of them.
            for (job, _), row, token in zip(jobs, rows, sampled, strict=False):
                task = asyncio.create_task(self._conclude(job, row, token, trace))
                self._draining.add(task)
                task.add_done_callback(self._draining.discard)

    # ── after a forward ────────────────────────────────────────────────────────────────────────────
    async def _conclude(
        self, job: _Job, row: ForwardRow, token: Sampled | None, trace: ForwardTrace
    ) -> None:
        """Publish the first token, let the row's transfers end, then go on with the next chunk or finish."""
        request = job.request
        if token is not None or row.scores is not None:
            row.run(self._tell(job, row, token))
        await row.drain()
        job.row = None
        if self._trace_log:
            self._log_trace(row, trace)
        if not row.dead:
            request.chunks += 1
            request.cached_tokens += row.new
        if row.dead or row.last or job.abandoned:
            await self._close_resident(request)
            job.end(_outcome(row, token))
        else:
            insort(self._waiting, job, key=attrgetter("arrival"))
        self._wake.set()

    async def _tell(self, job: _Job, row: ForwardRow, token: Sampled | None) -> None:
        if row.scores is not None:
            await job.on_scores(row.prefix + 1, row.scores)
        if token is not None:
            await job.on_first(token)

    async def _close_resident(self, request: PrefillRequest) -> None:
        if request.resident is not None:
            ring, request.resident = request.resident, None
            await ring.close()

    def _log_trace(self, row: ForwardRow, trace: ForwardTrace) -> None:
        log.info(
            "forward",
            request_id=row.request.attempt.request_id,
            engine=self._number,
            step=trace.step,
            cached=row.prefix,
            new=row.new,
            layers=row.request.geometry.n_layers,
            overlapped=trace.overlapped_layers(),
            compute_s=round(trace.busy_s("compute", "computed"), 6),
            seconds=round(trace.seconds(), 6),
            marks=[(event, layer, round(at, 6)) for event, layer, at in trace.marks],
        )


def _outcome(row: ForwardRow, token: Sampled | None) -> Sampled | Exception:
    """Of a row that was its request's last. An error of our own is passed on as it is."""
    failure = row.failure
    if isinstance(failure, TransportError):
        return PrefillFailed(str(failure))
    if failure is not None:
        return failure
    return token or PrefillFailed("the model's logits are no numbers: its KV-Cache is damaged")
