"""How far layerwise prefill hides KV transfers behind compute, and compute behind transfers.

    python -m benchmarks.overlap [--paths prefill,decode,split] [--layers 32] [--cached 4096] [--layer-ms 15]

For each read path a synthetic cluster of one prefill and one decode node, whose CNICs are paced so that a
layer's transfer takes as long as its compute. One long prompt is stored; then prompts that only differ in
their last tokens are prefilled one after another. The same again without layerwise prefill, where all of the
KV arrives before the first layer and leaves after the last: the reference of the same run.

Per forward, from the marks that the prefill node logs (`trace_forwards`):

    overlapped   layers during whose compute another layer's KV was arriving or leaving
    compute      sum of the layers' compute times, measured
    transfer     bytes / bandwidth of the NIC direction that has most to move (a local copy counts in both)
    whole        from the forward's begin until the last KV has left
    ratio        whole / max(compute, transfer): 1 is perfect overlap, about 2 is none
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from benchmarks import local
from benchmarks.local import random_ids, until

from dualpath.cluster.status import read_status

BLOCK_TOKENS = 64
WANTED_OVERLAP = 0.90
WANTED_RATIO = 1.25


@dataclass(frozen=True)
class Shape:
    """A forward: `cached` tokens are there, `new` are computed; `row_bytes` per token and layer."""

    layers: int
    cached: int
    new: int
    row_bytes: int
    layer_s: float

    def layer_bytes(self, path: str) -> dict[str, int]:
        """Bytes of one layer by NIC direction: the prefill (pe) or decode (de) engine's CNIC, out (tx) or in (rx).

        The PE's share goes to its device (a local copy: out and in), and on to the DE with the new tokens; the
        DE's share goes to the PE.
        """
        blocks = self.cached // BLOCK_TOKENS
        own = {"prefill": blocks, "decode": 0, "split": blocks // 2}[path] * BLOCK_TOKENS
        tokens = {
            "pe tx": own + own + self.new,
            "pe rx": self.cached,
            "de tx": self.cached - own,
            "de rx": own + self.new,
        }
        return {name: count * self.row_bytes for name, count in tokens.items()}

    def bandwidth(self, path: str) -> int:
        """Of all CNICs, such that the busiest direction needs as long as the compute."""
        return int(max(self.layer_bytes(path).values()) / self.layer_s)


@dataclass(frozen=True)
class Forward:
    """One measured forward; times in seconds."""

    layers: int
    overlapped: int
    compute_s: float
    transfer_s: float
    whole_s: float

    @property
    def ratio(self) -> float:
        return self.whole_s / max(self.compute_s, self.transfer_s)

    @property
    def overlap(self) -> float:
        return self.overlapped / self.layers


class Cluster:
    """One prefill and one decode node, as `dualpath up` starts them."""

    def __init__(self, home: Path, shape: Shape, path: str, *, layerwise: bool) -> None:
        self.shape, self.path = shape, path
        self.bandwidth = shape.bandwidth(path)
        self._context = random_ids(random.Random(1), shape.cached)
        self._tails = random.Random(2)
        room = 2 * (shape.cached + shape.new + BLOCK_TOKENS) * shape.layers * shape.row_bytes
        settings: dict[str, Any] = {
            "model": "synthetic",
            "shards": 1,
            "layerwise": layerwise,
            "read_path": path,
            "cnic_bandwidth": self.bandwidth,
            "max_context": shape.cached + shape.new + BLOCK_TOKENS,
            "chunk_tokens": shape.cached + shape.new,
            "prefill_buffer": room,
            "decode_buffer": room + 64 * BLOCK_TOKENS * shape.layers * shape.row_bytes,
            "prefill_hbm": room,
            "decode_hbm": room,
            "synthetic": {
                "layers": shape.layers,
                "row_bytes": shape.row_bytes,
                "forward_s": shape.layers * shape.layer_s,
                "token_s": 0.0,
                "attention_s": 0.0,
            },
            "trace_forwards": True,
            "log_format": "json",
        }
        self._cluster = local.Cluster(home, settings)
        self.home, self.model = self._cluster.home, self._cluster.model

    def close(self) -> None:
        self._cluster.close()

    def ask(self, tail: Sequence[int]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "prompt": [*self._context, *tail],
            "max_tokens": 1,
            "temperature": 0,
        }
        answer = httpx.post(
            f"{self._cluster.base_url}/completions",
            json=body,
            headers={"X-DualPath-Explain": "1"},
            timeout=120,
            trust_env=False,
        )
        answer.raise_for_status()
        explain: dict[str, Any] = answer.json()["dualpath"]
        return explain

    def store(self) -> None:
        self.ask(self._fresh_tail())

    def warm_forward(self) -> Forward:
        """One prefill of new tokens behind the stored ones. Raises RuntimeError where it went another way."""
        before, moved = len(self._traces()), self._moved()
        explain = self.ask(self._fresh_tail())
        if explain["read_path"] != self.path or explain["hit_tokens"] != self.shape.cached:
            raise RuntimeError(f"the prefill was to read all by the {self.path} path: {explain}")
        traces = until(lambda: self._traces()[before:], "the forward is in the log")
        self._check_bytes(moved)
        return self._measured(traces[0])

    def _measured(self, trace: dict[str, Any]) -> Forward:
        busiest = max(self.shape.layer_bytes(self.path).values()) * self.shape.layers
        return Forward(
            layers=trace["layers"],
            overlapped=trace["overlapped"],
            compute_s=trace["compute_s"],
            transfer_s=busiest / self.bandwidth,
            whole_s=trace["seconds"],
        )

    def _fresh_tail(self) -> list[int]:
        return random_ids(self._tails, self.shape.new)

    def _traces(self) -> list[dict[str, Any]]:
        return [line for line in self._cluster.traces() if line.get("event") == "forward"]

    # ── what really moved ──────────────────────────────────────────────────────────────────────────
    def _moved(self) -> dict[str, int]:
        """Bytes so far in both directions of the prefill engine's CNIC."""
        status = asyncio.run(read_status(self.home))
        assert status is not None
        assert status.cluster is not None
        moved = {"pe tx": 0, "pe rx": 0}
        for node in status.cluster.nodes:
            for nic in node.status.nics:
                if nic.nic == "prefill-0.cnic0":
                    moved[f"pe {nic.direction}"] += nic.nbytes
        return moved

    def _check_bytes(self, before: dict[str, int]) -> None:
        """The NIC has moved what the arithmetic says, and no more than messages besides."""
        expected = {
            name: count * self.shape.layers
            for name, count in self.shape.layer_bytes(self.path).items()
        }

        def all_reported() -> bool:
            return all(count - before[name] >= expected[name] for name, count in now().items())

        now = self._moved
        until(all_reported, "the node has reported its NIC's bytes")
        for name, count in now().items():
            if count - before[name] > expected[name] + (1 << 20):
                raise RuntimeError(f"{name}: {count - before[name]} bytes, not {expected[name]}")


@contextmanager
def cluster(shape: Shape, path: str, *, layerwise: bool) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as directory:
        started = Cluster(Path(directory), shape, path, layerwise=layerwise)
        try:
            yield started
        finally:
            started.close()


def measure(shape: Shape, path: str, runs: int, *, layerwise: bool) -> list[Forward]:
    name = "layerwise" if layerwise else "reference"
    with cluster(shape, path, layerwise=layerwise) as running:
        running.store()
        forwards = []
        for _ in range(runs):
            forward = running.warm_forward()
            forwards.append(forward)
            print(
                f"{path:8} {name:10} {forward.overlapped:3}/{forward.layers} overlapped   "
                f"compute {forward.compute_s:.3f} s   transfer {forward.transfer_s:.3f} s   "
                f"whole {forward.whole_s:.3f} s   ratio {forward.ratio:.3f}",
                flush=True,
            )
    return forwards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--paths", default=",".join(local.PATHS), help="read paths, with commas")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--cached", type=int, default=4096, help="tokens, in whole blocks")
    parser.add_argument("--new", type=int, default=64, help="tokens")
    parser.add_argument("--row-bytes", type=int, default=256, help="per token and layer")
    parser.add_argument("--layer-ms", type=float, default=15.0, help="compute time of a layer")
    parser.add_argument("--runs", type=int, default=5, help="measured forwards of each kind")
    args = parser.parse_args()
    if args.cached % BLOCK_TOKENS:
        parser.error(f"--cached must be whole blocks of {BLOCK_TOKENS} tokens")
    shape = Shape(args.layers, args.cached, args.new, args.row_bytes, args.layer_ms / 1e3)
    print(
        f"{local.machine()}; {shape.layers} layers of {args.layer_ms:g} ms, "
        f"{shape.cached} cached and {shape.new} new tokens of {shape.row_bytes} bytes per layer"
    )
    rows = []
    for path in args.paths.split(","):
        print(f"{path:8} CNICs of {shape.bandwidth(path) / 1e6:.1f} MB/s", flush=True)
        layerwise = measure(shape, path, args.runs, layerwise=True)
        reference = measure(shape, path, args.runs, layerwise=False)
        rows.append((path, layerwise, reference))
    print(f"\nmedians of {args.runs}     overlapped     ratio   reference's ratio")
    for path, layerwise, reference in rows:
        overlap = statistics.median(forward.overlap for forward in layerwise)
        ratio = statistics.median(forward.ratio for forward in layerwise)
        plain = statistics.median(forward.ratio for forward in reference)
        good = overlap >= WANTED_OVERLAP and ratio <= WANTED_RATIO
        print(
            f"{path:14} {overlap:12.0%} {ratio:9.3f} {plain:19.3f}"
            f"   {'good' if good else f'wanted: {WANTED_OVERLAP:.0%}, {WANTED_RATIO}'}"
        )


if __name__ == "__main__":
    main()
