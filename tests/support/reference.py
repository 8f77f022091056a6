"""What plain `transformers` answers: the yardstick of the torch engine and of whole clusters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_answers: dict[tuple[Path, tuple[int, ...]], tuple[list[int], list[float]]] = {}


def reference_greedy(
    model_dir: Path, prompt_ids: Sequence[int], n: int, stop_ids: Sequence[int] = ()
) -> list[int]:
    """`n` greedy tokens of `generate` in float32 on the CPU, EOS taken for any other token;
    with `stop_ids` the answer ends with the first of them. Answers are kept for the test session."""
    answer = _answer(model_dir, prompt_ids, n)[0]
    ends = [place for place, token in enumerate(answer) if token in stop_ids]
    return answer[: ends[0] + 1] if ends else answer


def smallest_gap(
    model_dir: Path, prompt_ids: Sequence[int], n: int, stop_ids: Sequence[int] = ()
) -> float:
    """How far the second best logit comes to the best one, at the closest of `reference_greedy`'s tokens.
    Where that is within float32's roundings, another order of summation gives another answer."""
    tokens = len(reference_greedy(model_dir, prompt_ids, n, stop_ids))
    return min(_answer(model_dir, prompt_ids, n)[1][:tokens])


def reference_logprobs(model_dir: Path, ids: Sequence[int]) -> list[list[float]]:
    """What float32 logits say, after each of `ids` but the last, of every token of the vocabulary."""
    import torch

    with torch.inference_mode():
        logits = _model(model_dir.resolve())(torch.tensor([list(ids)])).logits[0, :-1]
    scores: list[list[float]] = logits.log_softmax(-1).tolist()
    return scores


def _answer(model_dir: Path, prompt_ids: Sequence[int], n: int) -> tuple[list[int], list[float]]:
    """`n` tokens, and the gap at each."""
    key = (model_dir.resolve(), tuple(prompt_ids))
    if key not in _answers or len(_answers[key][0]) < n:
        _answers[key] = _generate(key[0], key[1], n)
    tokens, gaps = _answers[key]
    return tokens[:n], gaps[:n]


def _generate(model_dir: Path, prompt: tuple[int, ...], n: int) -> tuple[list[int], list[float]]:
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
            output_logits=True,
            return_dict_in_generate=True,
        )
    best, second = torch.cat(output.logits).topk(2).values.unbind(1)
    return output.sequences[0, len(prompt) :].tolist(), (best - second).tolist()


@lru_cache(maxsize=2)
def _model(model_dir: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    model.generation_config.eos_token_id = None
    return model
