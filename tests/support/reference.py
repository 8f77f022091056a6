"""What plain `transformers` answers: the yardstick of the torch engine and of whole clusters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_answers: dict[tuple[Path, tuple[int, ...]], list[int]] = {}


def reference_greedy(
    model_dir: Path, prompt_ids: Sequence[int], n: int, stop_ids: Sequence[int] = ()
) -> list[int]:
    """`n` greedy tokens of `LlamaForCausalLM.generate` in float32 on the CPU, EOS taken for any other token;
    with `stop_ids` the answer ends with the first of them. Answers are kept for the test session."""
    key = (model_dir.resolve(), tuple(prompt_ids))
    if len(_answers.get(key, ())) < n:
        _answers[key] = _generate(key[0], key[1], n)
    answer = _answers[key][:n]
    ends = [place for place, token in enumerate(answer) if token in stop_ids]
    return answer[: ends[0] + 1] if ends else answer


def _generate(model_dir: Path, prompt: tuple[int, ...], n: int) -> list[int]:
    import torch

    model = _model(model_dir)
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=n,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return [int(token) for token in output[0, len(prompt) :]]


@lru_cache(maxsize=2)
def _model(model_dir: Path) -> Any:
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    model.generation_config.eos_token_id = None
    return model
