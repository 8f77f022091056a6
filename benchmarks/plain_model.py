"""The reference of model speed: `transformers`' own forward and cache, greedily, without `generate`'s overhead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM
from transformers.utils import logging

from dualpath.model.spec import ModelSpec


class PlainModel:
    """A checkpoint as `transformers` runs it. One batch at a time: `prefill`, then as many `step`s."""

    def __init__(self, spec: ModelSpec) -> None:
        quiet: Any = logging.disable_progress_bar
        quiet()
        self._model: Any = LlamaForCausalLM.from_pretrained(
            spec.directory, dtype=getattr(torch, spec.dtype), local_files_only=True
        )
        self._output: Any = None
        self._mask: torch.Tensor | None = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Shorter prompts are padded on the left to the longest, as `generate` wants them."""
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
        keywords: dict[str, Any] = {}
        self._mask = None
        if any(len(prompt) < longest for prompt in prompts):
            self._mask = torch.tensor(
                [[0] * (longest - len(p)) + [1] * len(p) for p in prompts], dtype=torch.long
            )
            positions = (self._mask.cumsum(-1) - 1).clamp(min=0)
            keywords = {"attention_mask": self._mask, "position_ids": positions}
        with torch.inference_mode():
            self._output = self._model(ids, use_cache=True, logits_to_keep=1, **keywords)

    def step(self) -> list[int]:
        """Sample the next token of every row, and compute what follows it. Returns the tokens."""
        keywords: dict[str, Any] = {}
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
            positions = self._mask.sum(-1, keepdim=True) - 1
            keywords = {"attention_mask": self._mask, "position_ids": positions}
        with torch.inference_mode():
            token = self._output.logits[:, -1:].argmax(-1)
            cache = self._output.past_key_values
            self._output = self._model(token, past_key_values=cache, use_cache=True, **keywords)
        tokens: list[int] = token[:, 0].tolist()
        return tokens
