"""Gates: what must hold for a run's figures to be of what they say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dualpath.loadgen.experiments.bounds import Bounds
from dualpath.loadgen.experiments.systems import System
from dualpath.loadgen.replay import LAG_LIMIT_S
from dualpath.loadgen.report.results import Gate, NicSeries, storage_nics

BUSY = 0.9
"""Of its bandwidth a NIC that is said to be the bottleneck must use so much."""
CPU = 0.8
"""Of the machine's cores so much may be busy: above, it is the CPU that is measured."""
ALONE = 1.5
"""By so much the bound by storage must exceed the next one for storage NICs to be the bottleneck alone."""
LATE = 0.01
"""Of the median time to first token the client may be so late, where that is more than `LAG_LIMIT_S`."""
HITS = 0.98
"""Of the tokens that a perfect cache hits."""


def complete(turns: int, wanted: int, errors: Mapping[str, int]) -> Gate:
    said = f"{turns} of {wanted} answers were complete and of the right length"
    if errors:
        said += "; errors: " + ", ".join(f"{count} {kind}" for kind, count in errors.items())
    return Gate("answers complete", turns == wanted and not errors, said)


def right(checked: int, wrong: int) -> Gate:
    """Of answers that were recomputed."""
    said = f"{checked - wrong} of {checked} answers that were recomputed had the right tokens"
    return Gate("answers right", checked > 0 and not wrong, said)


def hits(cached: int, ideal: int) -> Gate:
    share = cached / ideal if ideal else 1.0
    return Gate(
        "KV-Cache hit",
        share >= HITS,
        f"{share:.1%} of the tokens that could hit (wanted {HITS:.0%})",
    )


def bottleneck(system: System, bounds: Bounds | None, busy: Mapping[str, float]) -> Gate:
    """Where storage NICs alone are the bound they must have been busy while all agents were there; of a system that
    does not balance them, the busiest: that others idle is then its result. `bounds` None: they are meant to be."""
    both = "all" if system.balances else "busiest"
    used = {
        "prefill": busy.get("prefill", 0.0),
        "both": busy.get(both, 0.0),
        "none": 0.0,
    }[system.readers]
    if bounds is None:
        return _storage_busy(used)
    if bounds.by != "storage":
        return Gate(
            "bottleneck busy", True, f"bound by {bounds.by}; the SNICs that read {used:.0%} busy"
        )
    others = {name: bound for name, bound in bounds.named().items() if name != "storage"}
    next_one = max(others, key=lambda name: others[name])
    if others[next_one] * ALONE > bounds.storage_s:
        return Gate(
            "bottleneck busy",
            True,
            f"bound by storage and {next_one} nearly alike; the SNICs that read {used:.0%} busy",
        )
    return _storage_busy(used)


def _storage_busy(used: float) -> Gate:
    return Gate(
        "bottleneck busy",
        used >= BUSY,
        f"the SNICs that read were {used:.0%} busy while the run was full (wanted {BUSY:.0%})",
    )


def cpu(share: float) -> Gate:
    return Gate(
        "CPU not the limit", share < CPU, f"{share:.0%} of the cores busy (wanted below {CPU:.0%})"
    )


def client(lag_s: float, ttft_s: float) -> Gate:
    """`lag_s`: 99th percentile; `ttft_s`: median."""
    limit_s = max(LAG_LIMIT_S, LATE * ttft_s)
    return Gate(
        "client not the limit",
        lag_s <= limit_s,
        f"lag of the client, 99th percentile: {lag_s * 1e3:.1f} ms (wanted {limit_s * 1e3:.1f} at most)",
    )


def busy(series: Sequence[NicSeries], since_s: float, until_s: float) -> dict[str, float]:
    """Mean use of the reading SNICs between two times: of `prefill`, `decode`, `all`, and of the `busiest` one."""
    used: dict[str, list[float]] = {"prefill": [], "decode": [], "all": []}
    for nic in storage_nics(series):
        if not nic.limit_bytes_per_s:
            continue
        share = _mean(nic, since_s, until_s) / nic.limit_bytes_per_s
        used["all"].append(share)
        used.setdefault(nic.role, []).append(share)
    found = {role: fmean(shares) for role, shares in used.items() if shares}
    return {**found, "busiest": max(used["all"])} if used["all"] else found


def balance(series: Sequence[NicSeries], since_s: float, until_s: float) -> float:
    """Largest over mean of what the SNICs read, in each interval that ends between two times; the mean of those, by
    bytes. 1 is perfect; 0: nothing was read."""
    nics = storage_nics(series)
    times = nics[0].at_s if nics else ()
    largest = mean = 0.0
    for k, at in enumerate(times):
        rates = [nic.bytes_per_s[k] for nic in nics if k < len(nic.bytes_per_s)]
        if since_s <= at <= until_s and any(rates):
            largest += max(rates)
            mean += fmean(rates)
    return largest / mean if mean else 0.0


def _mean(nic: NicSeries, since_s: float, until_s: float) -> float:
    """Bytes per second between two times, each interval by its part that lies between them."""
    moved = seconds = 0.0
    start = 0.0
    for at, rate in zip(nic.at_s, nic.bytes_per_s, strict=True):
        part = max(min(at, until_s) - max(start, since_s), 0.0)
        moved, seconds, start = moved + rate * part, seconds + part, at
    return moved / seconds if seconds else 0.0
