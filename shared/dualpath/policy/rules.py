"""The paper's rules of placement (§5), each a function of what is seen at one moment. Pure.

`prefill_placement` and `decode_placement` decide the same with heaps, so that a decision takes as long among a
thousand engines as among ten; the tests hold them against these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dualpath.policy.api import EngineView, QueuedRequest

OVERLOADED, SHORT_QUEUE, LONG_QUEUE = 1, 2, 3
"""A PE's categories."""

SLACK = 1.05
"""Of Z: how far above the mean a DE may be filled before it counts as full."""

WITHIN_Z, LEAST_TOK = "within Z, least seq", "none within Z, least tok"
CATEGORY_RULE = {SHORT_QUEUE: "category 2, least tok", LONG_QUEUE: "category 3, least tok"}


def category(view: EngineView) -> int:
    """Of a PE: 1 overloaded (`tok > β`), 2 with a short read queue (`read_q ≤ α`), 3 with a long one.

    An engine that is not open counts as overloaded.
    """
    work = view.tok if view.compute_tok is None else view.compute_tok
    if not view.open or (work > view.beta and view.seq >= view.always):
        return OVERLOADED
    return SHORT_QUEUE if view.read_q <= view.alpha else LONG_QUEUE


def pick_prefill(views: Iterable[EngineView]) -> EngineView | None:
    """The PE for the head of the queue: least `tok` in category 2, else in 3; None where both are empty.

    Of equal ones that with fewer requests, then the one that has waited longest for work.
    """
    usable = [view for view in views if category(view) != OVERLOADED]
    return min(usable, key=lambda v: (category(v), v.tok, v.seq, v.given, v.engine), default=None)


def pick_group(groups: Iterable[tuple[int, int, str]]) -> str | None:
    """DE scheduling, phase 1: of (total `tok`, `given`, node id), the group with the least `tok`; of equal ones the
    one that has waited longest. None where there is none."""
    return min(groups, default=(0, 0, None))[2]


def threshold(queue: Iterable[QueuedRequest], views: Sequence[EngineView]) -> float:
    """Z of a group: 1.05 · (Σ len of R + Σ tok) / |E|. R are the requests from the head of its private `queue` on
    that fit into the group's free HBM in total.

    Z does not change while R is given away: what leaves R is in `tok`. `views` must not be empty.
    """
    free = sum(view.hbm_free for view in views if view.open)
    total = sum(view.tok for view in views)
    for request in queue:
        free -= request.needed_tokens
        if free < 0:
            break
        total += request.tokens
    return SLACK * total / len(views)


def pick_decode(request: QueuedRequest, views: Iterable[EngineView], z: float) -> EngineView | None:
    """DE scheduling, phase 2. Of the DEs with enough free HBM: those with `tok + len ≤ Z` first, of them the least
    `seq`; else the least `tok`. None where no DE has room.

    Of equal ones the one with fewer tokens or requests, then the one that has waited longest for work.
    """
    # One pass, without a list for each question: this runs for every placement.
    needed, room_tok = request.needed_tokens, z - request.tokens
    within: tuple[int, int, int, EngineView] | None = None
    beyond: tuple[int, int, int, EngineView] | None = None
    for view in views:
        if not view.open or view.hbm_free < needed:
            continue
        tok = view.tok
        if tok <= room_tok:
            if within is None or (view.seq, tok, view.given) < within[:3]:
                within = view.seq, tok, view.given, view
        elif within is None and (beyond is None or (tok, view.seq, view.given) < beyond[:3]):
            beyond = tok, view.seq, view.given, view
    best = within or beyond
    return best[3] if best else None
