"""The paper's stopping rules (§6), as a judge over first tokens. Pure: times come in as arguments."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from dualpath.loadgen.replay.options import Slo, StopRules
from dualpath.loadgen.replay.records import Latencies, ReplayResult


class Judge:
    """Told each first token in order of time; says whether the replay should end."""

    def __init__(self, rules: StopRules) -> None:
        self._rules = rules
        self._times_s: list[float] = []
        self._sums: list[float] = [0.0]

    def first_token(self, now_s: float, ttft_s: float) -> None:
        """`now_s` never falls."""
        self._times_s.append(now_s)
        self._sums.append(self._sums[-1] + ttft_s)

    def window(self, end_s: float) -> tuple[int, float]:
        """First tokens in the window that ends at `end_s`, and their mean TTFT (0 of none)."""
        low = bisect_right(self._times_s, end_s - self._rules.window_s)
        high = bisect_right(self._times_s, end_s)
        count = high - low
        return count, (self._sums[high] - self._sums[low]) / count if count else 0.0

    def verdict(self, now_s: float, waiting_s: Iterable[float] = ()) -> str:
        """`overloaded`, `steady`, `max_s`, or empty. `waiting_s`: how long requests without a first token wait
        already; those that wait longer than the limit count with what they have waited, so that a server that
        answers nothing is overloaded too."""
        rules = self._rules
        count, mean = self.window(now_s)
        if rules.ttft_s is not None:
            late = [waited for waited in waiting_s if waited > rules.ttft_s]
            heard = count + len(late)
            if heard >= rules.min_turns and (count * mean + math.fsum(late)) / heard > rules.ttft_s:
                return "overloaded"
        if now_s >= rules.window_s + rules.lookback_s and count >= rules.min_turns:
            earlier, before = self.window(now_s - rules.lookback_s)
            if earlier >= rules.min_turns and abs(mean - before) < rules.tolerance * before:
                return "steady"
        return "max_s" if rules.max_s is not None and now_s >= rules.max_s else ""

    def mean_since(self, since_s: float) -> float | None:
        """Mean TTFT of first tokens from then on."""
        low = bisect_left(self._times_s, since_s)
        count = len(self._times_s) - low
        return (self._sums[-1] - self._sums[low]) / count if count else None


def slo_misses(slo: Slo, result: ReplayResult) -> list[str]:
    """Sentences about what a replay did not keep of its SLO, over its window; none: it was met. Errors, an overload,
    and no answers at all are misses too."""
    if result.ended == "overloaded":
        return ["TTFT exceeded the limit: the run was stopped"]
    if result.errors:
        return [f"turns failed: {result.errors}"]
    found: Latencies = result.latencies(steady=True)
    if not found.ttft_s.count:
        return ["no turn was answered"]
    misses = []
    for name, summary, limit in (
        ("TTFT", found.ttft_s, slo.ttft_s),
        ("TPOT", found.tpot_s, slo.tpot_s),
    ):
        value = summary.mean if slo.percent is None else summary.p(slo.percent)
        if value > limit:
            which = "mean" if slo.percent is None else f"p{slo.percent:g}"
            misses.append(f"{which} {name} is {value:.4g} s, above {limit:.4g} s")
    return misses
