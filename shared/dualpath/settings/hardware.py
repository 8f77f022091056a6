"""Hardware profiles: real nodes and models by their public figures, brought to a size that a laptop carries.

A profile has figures of one node of a real testbed, each with its source, and of one model. `Scale` changes units
only: how much of a node is emulated, and how many real bytes, tokens and seconds one emulated byte, token and second
stand for. So all ratios (time to read against time to compute, memory against context) are the real ones. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PATIENCE_S = 120.0
"""What counts as stuck in a cluster whose NICs are slow on purpose."""
CHUNK_TOKENS = 8192
"""Real tokens that a prefill forward computes at most; chosen, as engines of such nodes are run."""


@dataclass(frozen=True)
class Figure:
    """A public figure, or what follows from some: `source` says from where, and how."""

    value: float
    source: str


@dataclass(frozen=True)
class NodeFigures:
    """One node: bandwidths in bytes/s, of all its GPUs together where there are several."""

    gpus: int
    snic_bytes_per_s: Figure
    cnic_bytes_per_s: Figure
    dram_bytes_per_s: Figure
    prefill_hbm_bytes: Figure
    decode_hbm_bytes: Figure
    """What weights and activations leave for KV-Cache."""
    flop_per_s: Figure


@dataclass(frozen=True)
class ModelFigures:
    """One model. FLOP of prefill are `token_flop` per new token and `pair_flop` per new token and token before it."""

    name: str
    layers: int
    kv_bytes: Figure
    """Of a token, all layers."""
    token_flop: Figure
    pair_flop: Figure
    decode_step_s: Figure
    """Time of a decode step, whatever its batch."""


@dataclass(frozen=True)
class Scale:
    """What is emulated of it. None of the four changes a ratio.

    A node here is 1/`share` of a real one (its bandwidths, its FLOP/s, its HBM) and serves 1/`share` of the agents; a
    byte stands for `bytes_each` real ones, a token for `tokens_each`, and a real second takes `time` seconds.
    """

    share: float
    bytes_each: float
    tokens_each: int
    time: float

    def agents(self, real: float) -> int:
        """How many agents stand for so many real ones."""
        return max(round(real / self.share), 1)

    def seconds(self, real: float) -> float:
        return real * self.time

    def rate(self, real_bytes_per_s: float) -> float:
        return real_bytes_per_s / (self.share * self.bytes_each * self.time)


@dataclass(frozen=True)
class HardwareProfile:
    """A node, a model on it, and the scale. `shape` is (P, D) of the published runs; `efficiency`, the part of
    `flop_per_s` that prefill reaches, is the one constant that is calibrated: its source names by what."""

    name: str
    node: NodeFigures
    model: ModelFigures
    efficiency: Figure
    scale: Scale
    shape: tuple[int, int]
    emulated_layers: int
    ring_layers: int
    block_tokens: int = 128
    """Real tokens of a block: two or four times the paper's, because on a laptop it is blocks that cost CPU."""
    default_agents: int = 32
    """Emulated agents at most, where nobody says how many: what two cores serve in minutes."""

    @property
    def row_bytes(self) -> int:
        """Emulated KV bytes of an emulated token in an emulated layer."""
        real = self.model.kv_bytes.value * self.scale.tokens_each
        return max(round(real / self.scale.bytes_each / self.emulated_layers), 8)

    @property
    def token_bytes(self) -> int:
        return self.row_bytes * self.emulated_layers

    @property
    def token_s(self) -> float:
        """Emulated seconds of prefill that an emulated token takes, apart from attention."""
        return self._compute_s(self.model.token_flop.value * self.scale.tokens_each)

    @property
    def attention_s(self) -> float:
        """The same of a pair of emulated tokens."""
        return self._compute_s(self.model.pair_flop.value * self.scale.tokens_each**2)

    @property
    def decode_step_s(self) -> float:
        return self.scale.seconds(self.model.decode_step_s.value) * self.scale.tokens_each

    @property
    def snic_bytes_per_s(self) -> float:
        return self.scale.rate(self.node.snic_bytes_per_s.value)

    def settings(self, max_context: int) -> dict[str, Any]:
        """Settings of a cluster whose nodes are as the profile says, for prompts and answers of up to `max_context`
        emulated tokens together. An engine stands for all GPUs of its node. Buffers hold what HBM does, twice."""
        rate, node = self.scale.rate, self.node
        block = self.block_tokens // self.scale.tokens_each
        hbm = {
            "prefill_hbm": self._hbm(node.prefill_hbm_bytes),
            "decode_hbm": self._hbm(node.decode_hbm_bytes),
        }
        slots = -(-2 * max(hbm.values()) // (self.token_bytes * block)) + 64
        stride = -(-self.token_bytes * block // 4096) * 4096
        return {
            "model": "synthetic",
            "block_tokens": block,
            "max_context": max_context,
            "chunk_tokens": CHUNK_TOKENS // self.scale.tokens_each,
            "ring_layers": self.ring_layers,
            "snic_bandwidth": round(rate(node.snic_bytes_per_s.value)),
            "cnic_bandwidth": round(rate(node.cnic_bytes_per_s.value)),
            "dram_bandwidth": round(rate(node.dram_bytes_per_s.value)),
            # All agents may read at once, at a rate that is slow for real seconds.
            "read_deadline_s": PATIENCE_S,
            "transfer_deadline_s": PATIENCE_S,
            "prefill_buffer": slots * stride,
            "decode_buffer": slots * stride,
            **hbm,
            "synthetic": {
                "layers": self.emulated_layers,
                "row_bytes": self.row_bytes,
                "max_context": max_context,
                "forward_s": 0.0,
                "token_s": self.token_s,
                "attention_s": self.attention_s,
                "decode_step_s": self.decode_step_s,
            },
        }

    def figures(self) -> list[tuple[str, float, str]]:
        """(name, value, source) of all that it rests on."""
        named = {**vars(self.node), **vars(self.model), "efficiency": self.efficiency}
        return [
            (name, figure.value, figure.source)
            for name, figure in named.items()
            if isinstance(figure, Figure)
        ]

    def _compute_s(self, flop: float) -> float:
        real_s = flop / (self.node.flop_per_s.value * self.efficiency.value)
        return real_s * self.scale.share * self.scale.time

    def _hbm(self, real: Figure) -> int:
        return round(real.value / (self.scale.share * self.scale.bytes_each))
