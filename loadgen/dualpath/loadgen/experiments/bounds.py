"""What no scheduling can beat: times that storage NICs, engines and dependent decode steps need at least. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.loadgen.experiments.systems import System
from dualpath.loadgen.experiments.workload import Totals
from dualpath.settings.hardware import HardwareProfile


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of a JCT in seconds. `storage_s`: all hits at the full rate of the SNICs that may read them;
    `compute_s`: all new tokens on all prefill engines; `decode_s`: the steps of the agent that has most of them;
    `memory_s`: all contexts, for as long as each is decoded, in the memory of all decode engines."""

    storage_s: float
    compute_s: float
    decode_s: float
    memory_s: float

    def named(self) -> dict[str, float]:
        return {
            "storage": self.storage_s,
            "compute": self.compute_s,
            "decode": self.decode_s,
            "memory": self.memory_s,
        }

    @property
    def jct_s(self) -> float:
        return max(self.named().values())

    @property
    def by(self) -> str:
        named = self.named()
        return max(named, key=lambda name: named[name])


def bounds_of(
    totals: Totals, profile: HardwareProfile, system: System, prefill: int, decode: int
) -> Bounds:
    """Of a workload on P and D nodes of the profile."""
    readers = {"prefill": prefill, "both": prefill + decode, "none": 0}[system.readers]
    nbytes = totals.hit_tokens * profile.token_bytes
    compute_s = totals.miss_tokens * profile.token_s + totals.pairs * profile.attention_s
    resident_bytes = totals.resident_tokens * profile.token_bytes
    memory_bytes = profile.settings(2)["decode_hbm"] * decode
    return Bounds(
        storage_s=nbytes / (readers * profile.snic_bytes_per_s) if readers else 0.0,
        compute_s=compute_s / prefill,
        decode_s=totals.longest_steps * profile.decode_step_s,
        memory_s=resident_bytes * profile.decode_step_s / memory_bytes,
    )
