"""A checkpoint loaded with `transformers`' model code, run one layer at a time."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from dualpath.model.attention import DecodeCache, PrefillCache, RaggedCache
from dualpath.model.checkpoint import read_json
from dualpath.model.errors import ModelError
from dualpath.model.families import FAMILIES
from dualpath.model.latent import LatentDecodeCache, LatentPrefillCache
from dualpath.model.spec import ModelSpec
from dualpath.model.weights import load_model
from dualpath.settings import Settings

SCORED_BYTES = 32 << 20
"""Logits of prompts in memory at a time."""

_CACHES: dict[str, tuple[type[PrefillCache], type[DecodeCache]]] = {
    "grouped": (PrefillCache, DecodeCache),
    "latent": (LatentPrefillCache, LatentDecodeCache),
}
"""By the family's kind of attention."""


def choose_device(settings: Settings, engine: int) -> torch.device:
    """The device of engine number `engine`; raises ModelError where CUDA is asked for and not there."""
    if settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ModelError(
            "device is cuda, but torch finds no CUDA device; install a CUDA build of torch, or use device cpu"
        )
    return torch.device("cuda", engine % torch.cuda.device_count())


def thread_count(settings: Settings) -> int:
    """Torch threads of a worker: the setting, or all the cores that this process may use."""
    return settings.threads or len(os.sched_getaffinity(0))


class TorchModel:
    """Weights on a device, and the steps of a forward. Call from the compute thread only."""

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        """Load `spec.directory`: safetensors only, nothing fetched. Raises ModelError where that fails."""
        assert spec.directory is not None
        self.device = device
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        family = FAMILIES[spec.family]
        config = read_json(spec.directory / "config.json")
        self.parts = [family.parts(config, layer) for layer in range(spec.geometry.n_layers)]
        self.prefill_cache, self.decode_cache = _CACHES[family.attention]
        causal = load_model(spec.directory, family, self.dtype, device)
        self._body = causal.model
        self._head = causal.lm_head

    def embed(self, token_ids: Tensor) -> Tensor:
        """`[Σ new]` ids → `[1, Σ new, hidden]`."""
        hidden: Tensor = self._body.embed_tokens(token_ids.unsqueeze(0))
        return hidden

    def rope(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for positions `[1, Σ new]`: equal in all layers."""
        angles: tuple[Tensor, Tensor] = self._body.rotary_emb(hidden, position_ids=positions)
        return angles

    def layer(
        self,
        index: int,
        hidden: Tensor,
        positions: Tensor,
        rope: tuple[Tensor, Tensor],
        cache: RaggedCache,
    ) -> Tensor:
        """Run one layer over the packed batch; the new KV is in the cache's rows afterwards."""
        output: Tensor = self._body.layers[index](
            hidden,
            attention_mask=None,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            position_embeddings=rope,
            ragged=cache,
        )
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """`[n, hidden]` after the last layer → `[n, vocabulary]`, float32, on the host."""
        scores: Tensor = self._head(self._body.norm(hidden))
        return scores.float().cpu()

    def score(self, hidden: Tensor, ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities that `[n, hidden]` after the last layer give to `ids` `[n]`: theirs `[n]`, and the `top`
        best ids and theirs `[n, top]`, on the host. As many logits at a time as SCORED_BYTES hold."""
        parts = []
        step = max(SCORED_BYTES // (4 * self._head.out_features), 1)
        for start in range(0, len(ids), step):
            rows, wanted = hidden[start : start + step], ids[start : start + step]
            logprobs = self._head(self._body.norm(rows)).float().log_softmax(-1)
            best = logprobs.topk(min(top, logprobs.shape[-1]))
            chosen = logprobs.gather(1, wanted.unsqueeze(1)).squeeze(1)
            parts.append((chosen.cpu(), best.indices.int().cpu(), best.values.cpu()))
        chosen, indices, values = (torch.cat(column) for column in zip(*parts, strict=True))
        return chosen, indices, values
