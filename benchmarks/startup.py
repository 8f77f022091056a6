"""Seconds from `dualpath up` to a cluster that is ready, and the memory of its processes.

    python -m benchmarks.startup [--model smollm2] [--prefill 1] [--decode 1] [--runs 3]

The model is converted before anything is timed. Timed is the command `dualpath up`, from its start until
every process serves (looked at ten times a second). The reference, in turns with it, is one Python
process that loads the same checkpoint with `transformers` and ends: what a user without a cluster would wait for.

Memory is read from /proc/PID/smaps_rollup once the cluster is ready and nothing was asked yet: Rss counts every
page that a process maps, Pss divides shared ones (the checkpoint, libraries) by those that share them, so that
only Pss can be summed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.local import Cluster, add_model_options, cluster, machine, prepare

WANTED_S = 15.0

PLAIN = """
import sys
from pathlib import Path
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto", local_files_only=True)
print(Path("/proc/self/smaps_rollup").read_text())
"""


@dataclass(frozen=True)
class Memory:
    """Of one process, in bytes."""

    rss: int
    pss: int

    @classmethod
    def of(cls, rollup: str) -> Memory:
        """From the text of a `smaps_rollup`. Raises ValueError where a figure is missing."""
        found = {}
        for line in rollup.splitlines():
            name, _, rest = line.partition(":")
            if name in ("Rss", "Pss"):
                found[name] = int(rest.split()[0]) * 1024
        if len(found) != 2:
            raise ValueError("no Rss and Pss in it; is this the text of a smaps_rollup?")
        return cls(found["Rss"], found["Pss"])


def cluster_memory(running: Cluster) -> dict[str, Memory]:
    record = running.record
    pids = {"supervisor": record.supervisor.pid}
    pids |= {service.name: service.process.pid for service in record.services}
    return {
        name: Memory.of(Path(f"/proc/{pid}/smaps_rollup").read_text()) for name, pid in pids.items()
    }


def plain_start(directory: Path) -> tuple[float, Memory]:
    """Seconds of the reference, and its memory with the model loaded."""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", PLAIN, str(directory)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"transformers did not load the model:\n{ended.stderr}")
    return time.monotonic() - began, Memory.of(ended.stdout)


def report_memory(processes: dict[str, Memory], plain: Memory) -> None:
    mib = 1 << 20
    print("\nMiB                Rss      Pss")
    for name, memory in processes.items():
        print(f"{name:14} {memory.rss / mib:7.0f}  {memory.pss / mib:7.0f}")
    print(f"{'all':14}       –  {sum(m.pss for m in processes.values()) / mib:7.0f}")
    print(f"{'transformers':14} {plain.rss / mib:7.0f}  {plain.pss / mib:7.0f}")


def report(up_s: Sequence[float], plain_s: Sequence[float]) -> None:
    up, plain = statistics.median(up_s), statistics.median(plain_s)
    good = "good" if up < WANTED_S else f"wanted: below {WANTED_S:g} s"
    print(
        f"\nmedians: dualpath up {up:.1f} s ({min(up_s):.1f} to {max(up_s):.1f}), transformers alone "
        f"{plain:.1f} s ({min(plain_s):.1f} to {max(plain_s):.1f}), ratio {up / plain:.2f}   {good}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefill", type=int, default=1, help="prefill nodes")
    parser.add_argument("--decode", type=int, default=1, help="decode nodes")
    parser.add_argument("--runs", type=int, default=3, help="starts of each kind")
    add_model_options(parser)
    args = parser.parse_args()
    spec = prepare(args)
    assert spec.directory is not None
    settings = {
        "model": args.model,
        "dtype": args.dtype,
        "prefill": args.prefill,
        "decode": args.decode,
    }
    print(
        f"{machine()}; {args.model} ({spec.dtype}), {args.prefill} P, {args.decode} D", flush=True
    )
    up_s, plain_s = [], []
    for _ in range(args.runs):
        with cluster(settings, args.home) as running:
            up_s.append(running.started_s)
            processes = cluster_memory(running)
        seconds, plain = plain_start(spec.directory)
        plain_s.append(seconds)
        print(f"dualpath up {up_s[-1]:5.1f} s   transformers alone {seconds:5.1f} s", flush=True)
    report_memory(processes, plain)
    report(up_s, plain_s)
    print(f"measured: {machine()}")


if __name__ == "__main__":
    main()
