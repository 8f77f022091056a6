"""`dualpath replay`: agents against a server, live progress, and a result."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import uvloop
from rich.console import Console

from dualpath.cli.replay_view import ProgressView, print_result, print_step
from dualpath.cli.words import INTERRUPTED, WRONG_USE, complain
from dualpath.loadgen.replay import (
    Capacity,
    ClosedLoop,
    Load,
    OpenLoop,
    ReplayError,
    ReplayResult,
    Slo,
    StopRules,
    Target,
    search_aps,
)
from dualpath.loadgen.replay import replay as run_replay
from dualpath.loadgen.replay.options import Prompts
from dualpath.loadgen.summary import PERCENTILES
from dualpath.loadgen.traces import TABLE_2, Trace, TraceError, load_trace, make_trace

_CLOSED_AGENTS = 8
_PROMPTS = ("auto", "ids", "text", "chat")


@dataclass(frozen=True)
class Asked:
    """The options of `dualpath replay`, as they were given."""

    trace: str
    url: str
    agents: int | None
    aps: float | None
    timed: bool
    search: str | None
    max_s: float | None
    paper_rules: float | None
    slo_ttft: float | None
    slo_tpot: float | None
    slo_percent: float | None
    lengths: float
    turns: float
    time: float
    max_tokens: int | None
    seed: int | None
    prompts: str
    vocab: str
    model: str | None
    exact: bool
    explain: bool
    retries: int
    timeout_s: float
    ca_file: str | None
    output: Path | None
    records: bool
    api_key: str | None


def replay(asked: Asked) -> int:
    """Exit code: see the command."""
    console = Console(highlight=False)
    try:
        for option in ("max_s", "slo_ttft", "slo_tpot"):
            seconds = getattr(asked, option)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"--{option.replace('_', '-')} is more than 0, not {seconds:g}")
        trace, target = _trace(asked), _target(asked)
        stop = _stop(asked)
        if asked.output is not None:
            # Known before the replay and not after it; what is there stays until then.
            asked.output.open("ab").close()
        if asked.search is not None:
            work = search(asked, trace, target, stop or StopRules(), console)
        else:
            work = _once(asked, trace, target, stop, console)
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    except TraceError as error:
        complain(str(error))
        return 1
    except OSError as error:
        complain(f"{asked.output} cannot be written ({error.strerror}); name another file")
        return WRONG_USE
    try:
        return uvloop.run(work)
    except ReplayError as error:
        complain(str(error))
        return 1
    except OSError as error:
        complain(f"{asked.output} cannot be written ({error.strerror})")
        return 1


# ── what was asked ─────────────────────────────────────────────────────────────────────────────────
def _trace(asked: Asked) -> Trace:
    """Raises ValueError and TraceError."""
    if asked.trace in TABLE_2:
        count = min(asked.agents or 500, 500)
        trace = make_trace(
            asked.trace,
            trajectories=count,
            seed=asked.seed or 0,
            lengths=asked.lengths,
            turns=asked.turns,
        )
    else:
        if asked.lengths != 1 or asked.turns != 1:
            raise ValueError(
                "--lengths and --turns are of made traces; scale others with `dualpath trace convert`"
            )
        trace = load_trace(Path(asked.trace))
    trace = trace.scaled(time=asked.time, max_tokens=asked.max_tokens)
    return trace if asked.seed is None else replace(trace, seed=asked.seed)


def _target(asked: Asked) -> Target:
    if asked.prompts not in _PROMPTS:
        raise ValueError(f"--prompts is one of {', '.join(_PROMPTS)}, not {asked.prompts}")
    low, high = _pair(asked.vocab, "--vocab")
    if not (low.is_integer() and high.is_integer() and 0 <= low < high <= 1 << 31):
        raise ValueError(
            f"--vocab is LOW:HIGH, whole numbers, such as 300:30000, not {asked.vocab}"
        )
    return Target(
        asked.url,
        model=asked.model,
        api_key=asked.api_key,
        prompts=cast(Prompts, asked.prompts),
        vocab=(int(low), int(high)),
        exact=asked.exact,
        explain=asked.explain,
        ca_file=asked.ca_file,
        timeout_s=asked.timeout_s,
        retries=asked.retries,
    )


def _load(asked: Asked, trace: Trace) -> Load:
    if asked.aps is not None and asked.timed:
        raise ValueError("--aps and --timed are two ways to say when agents arrive; give one")
    if asked.timed and not trace.timed:
        raise ValueError(f"{asked.trace} does not say when agents arrive; use --aps")
    if asked.aps is None and not asked.timed:
        return ClosedLoop(asked.agents or _CLOSED_AGENTS)
    if asked.agents is None and asked.aps is not None and _stop(asked) is None:
        return OpenLoop(asked.aps, len(trace), asked.seed or 0)
    return OpenLoop(asked.aps, asked.agents, asked.seed or 0)


def _stop(asked: Asked) -> StopRules | None:
    if asked.paper_rules is not None:
        return replace(StopRules().divided(asked.paper_rules), max_s=asked.max_s)
    if asked.max_s is not None:
        return StopRules(ttft_s=None, lookback_s=float("inf"), max_s=asked.max_s)
    return None


def _pair(text: str, option: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        raise ValueError(f"{option} is LOW:HIGH, not {text}") from None


# ── running ────────────────────────────────────────────────────────────────────────────────────────
async def _once(
    asked: Asked, trace: Trace, target: Target, stop: StopRules | None, console: Console
) -> int:
    try:
        load = _load(asked, trace)
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    result = await _run(trace, target, load, stop)
    print_result(result, console)
    _write(asked, result.as_dict(records=asked.records))
    return _code(result)


async def search(
    asked: Asked, trace: Trace, target: Target, stop: StopRules, console: Console
) -> int:
    """`--search`: a replay per rate. Exit code as the command's; 1 also where no rate is within the SLO."""
    paper = Slo().divided(asked.paper_rules or 1.0)
    slo = Slo(
        paper.ttft_s if asked.slo_ttft is None else asked.slo_ttft,
        paper.tpot_s if asked.slo_tpot is None else asked.slo_tpot,
        asked.slo_percent,
    )
    interrupted = False
    runs = 0

    async def run(aps: float) -> ReplayResult:
        nonlocal interrupted, runs
        # Contents of its own: what an earlier rate has stored is of no use to this one.
        own = replace(trace, seed=trace.seed + runs)
        runs += 1
        result = await _run(own, target, OpenLoop(aps, asked.agents, asked.seed or 0), stop)
        interrupted = interrupted or result.ended == "interrupted"
        if interrupted:
            raise asyncio.CancelledError
        return result

    try:
        if slo.percent is not None and slo.percent not in PERCENTILES:
            known = ", ".join(f"{percent:g}" for percent in PERCENTILES)
            raise ValueError(f"--slo-percent is one of {known}, not {slo.percent:g}")
        low, high = _pair(asked.search or "", "--search")
        found = await search_aps(
            run, slo, low=low, high=high, on_step=lambda step: print_step(step, console)
        )
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    except asyncio.CancelledError:
        if not interrupted:
            raise
        return INTERRUPTED
    _print_capacity(found, console)
    _write(
        asked,
        {
            "aps": found.aps,
            "bounded": found.bounded,
            "steps": [
                {
                    "aps": step.aps,
                    "misses": step.misses,
                    "result": step.result.as_dict(records=asked.records),
                }
                for step in found.steps
            ],
        },
    )
    return 0 if found.aps is not None else 1


def _print_capacity(found: Capacity, console: Console) -> None:
    if found.aps is None:
        console.print(f"not even {found.steps[0].aps:g} agents/s are within the SLO")
    else:
        more = "" if found.bounded else "; more was not tried"
        console.print(f"within the SLO: {found.aps:.4g} agents/s{more}")


async def _run(trace: Trace, target: Target, load: Load, stop: StopRules | None) -> ReplayResult:
    loop, interrupt = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt.set)
    try:
        with ProgressView() as view:
            return await run_replay(
                trace, target, load, stop=stop, on_progress=view.show, interrupt=interrupt
            )
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _write(asked: Asked, found: dict[str, Any]) -> None:
    if asked.output is not None:
        asked.output.write_bytes(msgspec.json.encode(found) + b"\n")


def _code(result: ReplayResult) -> int:
    if result.ended == "interrupted":
        return INTERRUPTED
    return 1 if result.errors else 0
