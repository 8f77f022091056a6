"""`dualpath why`: what the scheduler decided about a request, and from which numbers."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from dualpath.bus import Bus, BusError
from dualpath.cli.tables import new_table
from dualpath.cli.words import NOT_RUNNING, WRONG_USE, complain
from dualpath.cluster.home import Home
from dualpath.cluster.stop import running_cluster
from dualpath.policy.api import UNLIMITED, EngineView
from dualpath.scheduler.decisions import Decision, decode
from dualpath.settings import Settings, load_settings, shell_path
from dualpath.wire import control

_ANSWER_S = 5.0
_NOT_KNOWN = 1
_WIDE = 140


def why(
    config: Path | None, home: Path | None, request: str | None, *, limit: int, as_json: bool
) -> int:
    """Exit code: 0 shown, 1 nothing is known of the request or the scheduler does not answer, 2 wrong settings, 3 no
    cluster runs."""
    try:
        settings = load_settings(config, home=home)
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    try:
        answer = asyncio.run(_ask(Home(settings.home), _bare(request or ""), limit))
    except (BusError, TimeoutError, PermissionError, msgspec.MsgspecError) as error:
        complain(f"the scheduler does not answer: {error or 'no answer'}")
        return _NOT_KNOWN
    if answer is None:
        complain(f"no cluster runs on {shell_path(settings.home)}; --home names another place")
        return NOT_RUNNING
    decisions, now = answer
    if request and not decisions:
        complain(
            f"the scheduler remembers no decision about {request}: it keeps the last 2,000 since it was started; "
            "`dualpath why` shows the latest ones"
        )
        return _NOT_KNOWN
    if as_json:
        print(as_document(decisions, now))
    else:
        show(decisions, now, Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False))
    return 0


def _bare(request: str) -> str:
    """What the scheduler knows a request by: ids of answers end in it. Ids of clients are that, too."""
    found = re.fullmatch(r"(?:chatcmpl-|cmpl-|resp_|.*~)([0-9a-f]{24}(?:-\d+)?)", request)
    return found[1] if found else request


async def _ask(home: Home, request: str, limit: int) -> tuple[list[Decision], float] | None:
    """The decisions and the scheduler's time; None where no cluster runs."""
    if running_cluster(home) is None:
        return None
    try:
        settings = Settings(**json.loads(home.settings_file.read_bytes()))
    except FileNotFoundError:
        raise BusError("the cluster is only starting") from None
    if settings.nats_url is None:
        raise BusError("the cluster is only starting")
    async with asyncio.timeout(_ANSWER_S):
        bus = await Bus.connect(
            settings.nats_url, "why", user=settings.nats_user, password=settings.nats_password
        )
        try:
            asked = control.WhyRequest(request, limit)
            answer = await bus.request(control.SCHEDULER, asked, timeout_s=_ANSWER_S)
        finally:
            await bus.close()
    if not isinstance(answer, control.Why):
        raise BusError(f"it answered with {type(answer).__name__}")
    return decode(answer.decisions), answer.now


def as_document(decisions: list[Decision], now: float) -> str:
    """The decisions as they are kept, and how long ago each was made."""
    listed = [
        {"seconds_ago": round(now - decision.at, 3), **msgspec.to_builtins(decision)}
        for decision in decisions
    ]
    return msgspec.json.format(msgspec.json.encode(listed)).decode()


# ── for people ─────────────────────────────────────────────────────────────────────────────────────
def show(decisions: list[Decision], now: float, console: Console) -> None:
    if not decisions:
        console.print("no decision yet")
    for decision in decisions:
        console.print(_headline(decision, now))
        if decision.read is not None and decision.read.hit_blocks:
            console.print(_reading(decision))
        if decision.views:
            console.print(_views(decision))


def _headline(decision: Decision, now: float) -> str:
    request = decision.request
    what = (
        f"{request.request_id}, {now - decision.at:.1f} s ago: {request.tokens:,} tokens, "
        f"{request.new_tokens:,} to compute"
    )
    if decision.kind == "prefix":
        return f"{what}\n  waits for {decision.leader}, which computes {decision.blocks} blocks of its prompt"
    assert decision.engine is not None
    role = "DE" if decision.kind == "decode" else "PE"
    z = f", Z = {decision.threshold:,.0f}" if decision.threshold else ""
    left = f"; {decision.waiting} more waited" if decision.waiting else ""
    engine = f"{decision.engine.node_id}/{decision.engine.number}"
    return f"{what}\n  {role} {engine} by {decision.rule}{z}{left}"


def _reading(decision: Decision) -> str:
    read = decision.read
    assert read is not None
    sides = ", ".join(
        f"{name} {side.read_q:,} tokens at {side.tokens_per_s:,.0f}/s"
        if side.tokens_per_s != 1
        else f"{name} {side.read_q:,} tokens"
        for name, side in (("PE", read.prefill), ("DE", read.decode))
    )
    de = read.hit_blocks - read.prefill_blocks
    return (
        f"  read path {read.path}: {read.prefill_blocks} blocks by the PE, {de} by the DE; "
        f"read queues: {sides}"
    )


def _views(decision: Decision) -> object:
    columns = ["", "engine", "seq", "tok", "to compute", "read_q", "HBM free", "α", "β"]
    table = new_table("", *columns, numbers=7)
    for view in decision.views:
        mark = "→" if view.engine == decision.engine else ("" if view.open else "closed")
        table.add_row(mark, f"{view.engine.node_id}/{view.engine.number}", *_numbers(view))
    if decision.left_out:
        table.add_row("", f"and {decision.left_out} more", *[""] * 7)
    return table


def _numbers(view: EngineView) -> list[str]:
    compute = view.tok if view.compute_tok is None else view.compute_tok
    hbm_free = f"{view.hbm_free:,}" if view.hbm_total else "–"
    values = (view.seq, view.tok, compute, view.read_q)
    bounds = ("–" if bound == UNLIMITED else f"{bound:,}" for bound in (view.alpha, view.beta))
    return [*(f"{value:,}" for value in values), hbm_free, *bounds]
