"""Every rule of the scheduler firing, on a fixed sequence of fetches and arrivals, as the tables of docs/policies.md.

    python -m benchmarks.policy_table

Nothing is random and nothing is timed: the same tables come out everywhere, and a test compares them with the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from dualpath.policy.api import (
    EngineId,
    EngineView,
    PlacementPolicy,
    QueuedRequest,
    ReadSide,
    Waiting,
)
from dualpath.policy.attention import AttentionFit
from dualpath.policy.ordering import Fifo, ShortFirst
from dualpath.policy.queue import RequestQueue
from dualpath.policy.registry import batch_policy, placement_policy, read_path_policy
from dualpath.policy.rules import category

ALPHA, BETA = 1000, 500
TWINS = ("adaptive", "least-tokens", "round-robin", "random")
PATHS = ("adaptive", "split", "halves", "round-robin", "prefill", "decode")


def view(name: str, tok: int, seq: int, *, read_q: int = 0, hbm_free: int = 0) -> EngineView:
    node, _, number = name.partition(".")
    engine = EngineId(node, int(number))
    return EngineView(engine, seq, tok, read_q, hbm_free, alpha=ALPHA, beta=BETA)


def request(name: str, tokens: int, needed: int = 0) -> QueuedRequest:
    return QueuedRequest(name, tokens, tokens, needed, arrival=int(name[1:]))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def step(
    policy: PlacementPolicy, nodes: Sequence[str], what: str, says: str
) -> list[tuple[object, ...]]:
    """Rows of all placements that an event leads to, and one that says who waits then."""
    rows: list[tuple[object, ...]] = []
    while True:
        seen = says.format_map(_Shown(policy, nodes))
        if (placed := policy.place_one()) is None:
            break
        engine = f"{placed.engine.node_id}.{placed.engine.number}"
        z = f", Z = {placed.threshold:.0f}" if placed.threshold else ""
        rows.append((what, seen, f"{placed.request_id} → {engine}", placed.rule + z))
        what = ""
    if len(policy):
        rows.append(
            (what, seen, f"waiting: {', '.join(policy.waiting())}", "no engine may have it")
        )
    return rows


class _Shown(dict[str, str]):
    """`{engines}` in a text: what the policy counts at that moment."""

    def __init__(self, policy: PlacementPolicy, nodes: Sequence[str]) -> None:
        views = [view for node in nodes for view in policy.views(node)]
        super().__init__(
            pe=", ".join(
                f"{v.engine.node_id}.{v.engine.number} {v.tok}/{v.read_q} ({category(v)})"
                for v in views
            ),
            de=", ".join(
                f"{v.engine.node_id}.{v.engine.number} {v.tok}/{v.seq}/{v.hbm_free}" for v in views
            ),
        )


def prefill() -> list[str]:
    policy, nodes = placement_policy("adaptive", "prefill"), ("p0", "p1")
    policy.update("p0", [view("p0.0", 0, 0, read_q=1200)])
    policy.update("p1", [view("p1.0", 350, 1, read_q=100), view("p1.1", 400, 1, read_q=100)])
    rows: list[tuple[object, ...]] = []
    for name, tokens in (("r1", 100), ("r2", 160), ("r3", 90), ("r4", 450), ("r5", 80), ("r6", 70)):
        policy.add(request(name, tokens))
        rows += step(policy, nodes, f"{name} arrives, {tokens} tokens", "{pe}")
    policy.update("p0", [view("p0.0", 500, 1, read_q=900)])
    rows += step(policy, nodes, "p0 fetches: has finished r5 and read", "{pe}")
    return table(("event", "engines: tok/read_q (category)", "decision", "rule"), rows)


def decode() -> list[str]:
    policy, nodes = placement_policy("adaptive", "decode"), ("d0", "d1")
    policy.update(
        "d0",
        [
            view("d0.0", 100, 4, hbm_free=500),
            view("d0.1", 150, 1, hbm_free=300),
            view("d0.2", 600, 2, hbm_free=50),
        ],
    )
    policy.update("d1", [view("d1.0", 1100, 2, hbm_free=100)])
    rows: list[tuple[object, ...]] = []
    for name, tokens in (("r1", 50), ("r2", 350), ("r3", 160), ("r4", 200), ("r5", 20)):
        policy.add(request(name, tokens, tokens + 10))
        rows += step(policy, nodes, f"{name} arrives, {tokens} tokens", "{de}")
    policy.update("d1", [view("d1.0", 0, 0, hbm_free=900)])
    rows += step(policy, nodes, "d1 fetches: it is empty", "{de}")
    return table(("event", "engines: tok/seq/free HBM", "decision", "rule"), rows)


def twins() -> list[str]:
    rows = []
    for name in TWINS:
        policy = placement_policy(name, "prefill")
        for number, (tok, read_q) in enumerate(((450, 0), (300, 0), (0, 2000))):
            policy.update(f"p{number}", [view(f"p{number}.0", tok, 1, read_q=read_q)])
        for number in range(6):
            policy.add(request(f"r{number + 1}", 100))
        placed = [placement.engine.node_id for placement in policy.place()]
        rows.append((f"`{name}`", " ".join(placed), f"{len(policy)} wait"))
    return table(("placement", "r1 … r6 go to", "then"), rows)


def read_paths() -> list[str]:
    cases = (
        ("equal queues", 20, ReadSide(0), ReadSide(0)),
        ("PE's queue is longer", 20, ReadSide(640), ReadSide(0)),
        ("DE's queue is much longer", 20, ReadSide(0), ReadSide(2560)),
        ("DE's SNIC is three times as fast", 20, ReadSide(0, 1.0), ReadSide(0, 3.0)),
        ("a short hit", 6, ReadSide(64), ReadSide(0)),
    )
    policies = {name: read_path_policy(name, 64) for name in PATHS}
    rows = []
    for what, hits, pe, de in cases:
        shares = [policy.choose(hits, pe, de).prefill_blocks for policy in policies.values()]
        rows.append((what, *(f"{share} + {hits - share}" for share in shares)))
    return table(("blocks read by PE + DE", *(f"`{name}`" for name in PATHS)), rows)


def batches() -> list[str]:
    fit = AttentionFit(fixed_s=0.002, per_token_s=0.0, per_pair_s=1e-8)
    cases = (
        ("five next turns", [Waiting(32_000, 429)] * 5),
        ("a cold prompt", [Waiting(0, 12_000)]),
        ("a turn, then a cold prompt", [Waiting(32_000, 429), Waiting(0, 12_000)]),
        ("a context that takes longer than the quota", [Waiting(60_000_000, 429)]),
    )
    policies = [batch_policy(name, 8192, fit, 0.3) for name in ("token-budget", "quota")]
    rows = []
    for what, waiting in cases:
        cells: list[object] = [what]
        for policy in policies:
            chosen = policy.select(waiting, 1 << 40)
            took = fit.seconds((w.cached, n) for w, n in zip(waiting, chosen, strict=False))
            cells.append(f"{' + '.join(map(str, chosen))} ({took:.3f} s)")
        rows.append(cells)
    return table(
        ("waiting", "`token-budget` of 8,192 (attention)", "`quota` of 0.3 s (attention)"), rows
    )


def orders() -> list[str]:
    came = (("r1", 0.0, 900), ("r2", 0.5, 10), ("r3", 5.0, 30), ("r4", 80.0, 10))
    rows = []
    for name, ordering in (("fifo", Fifo()), ("short-first", ShortFirst(100.0))):
        queue = RequestQueue(ordering)
        for number, at, new in came:
            queue.add(QueuedRequest(number, new, new, arrival=int(number[1:]), arrived_s=at))
        rows.append((f"`{name}`", " ".join(waiting.request_id for waiting in queue)))
    return table(
        ("ordering", "r1 (at 0 s, 900 tokens), r2 (0.5 s, 10), r3 (5 s, 30), r4 (80 s, 10)"), rows
    )


def page() -> dict[str, list[str]]:
    """Table by name, in the order of the page."""
    return {
        "PE scheduling": prefill(),
        "DE scheduling": decode(),
        "Twins": twins(),
        "Read path": read_paths(),
        "Batches": batches(),
        "Order": orders(),
    }


def main() -> int:
    for name, lines in page().items():
        print(f"### {name}\n", *lines, "", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
