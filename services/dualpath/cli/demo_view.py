"""What `dualpath demo` shows: turns and NICs while it runs, and times to first token at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from rich import box
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table

from dualpath.cli.agent import TURNS, Turn
from dualpath.cli.tables import readable_size
from dualpath.wire.types import NicUse

_PATHS = {
    "prefill": "prefill node (PE)",
    "decode": "decode node (DE)",
    "split": "both (split)",
}
_BAR_WIDTH = 12
_TABLE_LINES = 5
"""Lines of a table beside its rows: title, heads, rule, and an empty one above and below."""


@dataclass(frozen=True)
class NicTotal:
    """Bytes of one NIC, both lanes together."""

    nic: str
    received: int
    sent: int


def totals(nics: Iterable[NicUse]) -> list[NicTotal]:
    """Of the NICs of prefill and decode nodes (shards have one too), prefill nodes first, a node's SNIC first."""
    sums: dict[str, dict[str, int]] = {}
    for moved in nics:
        if moved.nic.startswith(("prefill", "decode")):
            directions = sums.setdefault(moved.nic, {"rx": 0, "tx": 0})
            directions[moved.direction] = directions.get(moved.direction, 0) + moved.nbytes
    names = sorted(sums, key=_place)
    return [NicTotal(name, sums[name]["rx"], sums[name]["tx"]) for name in names]


def _place(nic: str) -> tuple[bool, str, bool, str]:
    node, _, kind = nic.partition(".")
    return not node.startswith("prefill"), node, kind != "snic", kind


class DemoView:
    """Grows with `turns`; `nics` is asked at each drawing, None where the cluster's processes cannot be.

    With a `height`, of a terminal in lines, the earliest turns are left out so that the NICs stay in sight.
    """

    def __init__(
        self, nics: Callable[[], Iterable[NicUse]] | None, height: int | None = None
    ) -> None:
        self.turns: list[Turn] = []
        self.height = height
        self._nics = nics

    def __rich__(self) -> RenderableType:
        nics = reads(self.turns) if self._nics is None else moved(totals(self._nics()))
        rows = TURNS
        if self.height is not None:
            rows = max(1, self.height - nics.row_count - 2 * _TABLE_LINES - 1)
        return Group(turns_table(self.turns, rows), nics)


def turns_table(turns: Sequence[Turn], rows: int = TURNS) -> Table:
    """The last `rows` of the turns."""
    table = _table(f"An agent's turns on one context ({len(turns)} of {TURNS})")
    table.add_column("turn", justify="right")
    table.add_column("prompt", justify="right")
    table.add_column("cached", justify="right")
    table.add_column("read by")
    table.add_column("TTFT", justify="right")
    table.add_column("same prompt cold", justify="right")
    for turn in turns[-rows:]:
        answer = turn.answer
        warm = answer.cached_tokens > 0
        table.add_row(
            str(turn.number),
            str(answer.prompt_tokens),
            str(answer.cached_tokens),
            answer.read_path if warm else "–",
            seconds(answer.ttft_s),
            seconds(turn.cold_ttft_s) if warm and turn.cold_ttft_s is not None else "",
        )
    return table


def moved(nics: Sequence[NicTotal]) -> Table:
    """Storage NICs receive the cached KV that their side reads, and send new blocks."""
    table = _table("NICs of both sides, bytes since start")
    table.add_column("NIC", no_wrap=True)
    table.add_column("received", justify="right", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH)
    table.add_column("sent", justify="right", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH)
    most = max((max(nic.received, nic.sent) for nic in nics), default=0) or 1
    for nic in nics:
        table.add_row(
            nic.nic,
            readable_size(nic.received),
            Bar(most, 0, nic.received, width=_BAR_WIDTH, color="cyan"),
            readable_size(nic.sent),
            Bar(most, 0, nic.sent, width=_BAR_WIDTH, color="magenta"),
        )
    return table


def reads(turns: Sequence[Turn]) -> Table:
    """What answers tell of a cluster whose processes are elsewhere."""
    table = _table("Cached KV read so far, as the answers tell")
    table.add_column("side")
    table.add_column("bytes", justify="right")
    for side, name in enumerate(("prefill", "decode")):
        table.add_row(name, readable_size(sum(turn.answer.bytes_read[side] for turn in turns)))
    return table


def ttft_table(turns: Sequence[Turn]) -> Table:
    """Time to first token by read path; of turns that were sent cold as well, both times of the same prompts."""
    table = _table("Time to first token, median")
    table.add_column("KV read by", no_wrap=True)
    for name in ("turns", "TTFT", "compared", "warm", "cold", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    for path, name in _PATHS.items():
        warm = [
            turn for turn in turns if turn.answer.cached_tokens and turn.answer.read_path == path
        ]
        if not warm:
            continue
        both = [(t.answer.ttft_s, t.cold_ttft_s) for t in warm if t.cold_ttft_s is not None]
        paired = ["", "", ""]
        if both:
            again, cold = median(pair[0] for pair in both), median(pair[1] for pair in both)
            paired = [seconds(again), seconds(cold), f"{cold / again:.1f}×" if again else ""]
        all_of_them = seconds(median(turn.answer.ttft_s for turn in warm))
        table.add_row(name, str(len(warm)), all_of_them, str(len(both)), *paired)
    first = [turn.answer.ttft_s for turn in turns if not turn.answer.cached_tokens]
    if first:
        table.add_row("nothing cached", str(len(first)), seconds(median(first)), *[""] * 4)
    table.caption = "compared: prompts that were sent again without KV-Cache; their TTFT both ways"
    return table


def seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
