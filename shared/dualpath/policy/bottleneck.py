"""Which P/D ratios leave no NIC and no DRAM as bottleneck when all SNICs read at full speed (paper §3). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constraint:
    """One inequality of §3 for a cluster's shape. `low ≤ P/D ≤ high`; None: no bound on that side."""

    name: str
    holds: bool
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class BottleneckReport:
    """`low ≤ P/D ≤ high` is the bottleneck-free range; `ratio` is this cluster's."""

    ratio: float
    low: float
    high: float
    constraints: tuple[Constraint, ...]

    @property
    def free(self) -> bool:
        return all(constraint.holds for constraint in self.constraints)

    def sentence(self) -> str:
        """For people, at start-up."""
        range_text = f"{self.low:.3g} ≤ P/D ≤ {self.high:.3g}"
        if self.free:
            return f"P/D = {self.ratio:.3g} is inside the bottleneck-free range {range_text}"
        broken = ", ".join(c.name for c in self.constraints if not c.holds)
        if self.low > self.high or any(
            c.low is None and c.high is None and not c.holds for c in self.constraints
        ):
            return f"no P/D is free of bottlenecks on these nodes; limited by {broken}"
        return f"P/D = {self.ratio:.3g} is outside of the bottleneck-free range {range_text}: limited by {broken}"


def bottleneck_free(
    prefill_nodes: int,
    decode_nodes: int,
    engines_per_node: int,
    snic_to_cnic: float,
    dram_to_snic: float,
) -> BottleneckReport:
    """Check P prefill and D decode nodes of g engines against §3.

    `snic_to_cnic` is s, a node's SNIC bandwidth as a multiple of one CNIC's bandwidth B; `dram_to_snic` is
    M / (B·s), a node's DRAM bandwidth as a multiple of its SNIC's. Raises ValueError for what is not positive.
    """
    p, d, g, s = prefill_nodes, decode_nodes, engines_per_node, snic_to_cnic
    if min(p, d, g) < 1 or min(s, dram_to_snic) <= 0:
        raise ValueError("nodes, engines and bandwidths must be positive to check the range")
    ratio = p / d
    # The PE CNICs' write side has no bound where the SNIC is as fast as all CNICs together.
    pe_write = s / (g - s) if g > s else float("inf")
    limits = [
        Constraint("PE CNIC, read side (2s ≤ g)", 2 * s <= g),
        Constraint("PE CNIC, write side", ratio >= pe_write, low=pe_write),
        _at_most("DE CNIC, read side", ratio, (g - 2 * s) / s),
        _at_most("DE CNIC, write side", ratio, (g - s) / (2 * s)),
        Constraint("PE DRAM (2·s·B ≤ M)", dram_to_snic >= 2),
        _at_most("DE DRAM", ratio, (dram_to_snic - 3) / 2),
    ]
    low = max(limit.low for limit in limits if limit.low is not None)
    high = min(limit.high for limit in limits if limit.high is not None)
    return BottleneckReport(ratio, low, high, tuple(limits))


def _at_most(name: str, ratio: float, bound: float) -> Constraint:
    return Constraint(name, ratio <= bound, high=bound)
