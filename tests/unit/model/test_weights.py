"""Weights find their places in the model's code, or the checkpoint is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.support.checkpoints import FAMILIES as MADE
from tests.support.checkpoints import Weights, config_of, save_weights, write_checkpoint

from dualpath.model.api import ModelError
from dualpath.model.experts import MappedExperts
from dualpath.model.families import FAMILIES
from dualpath.model.weights import load_model

CPU = torch.device("cpu")


def load(directory: Path, family: str, dtype: torch.dtype = torch.float32) -> Any:
    return load_model(directory, FAMILIES[family], dtype, CPU)


def stored(directory: Path) -> Weights:
    weights: Weights = load_file(directory / "model.safetensors")
    return weights


@pytest.mark.parametrize("family", MADE)
def test_one_file_and_several_hold_the_same_model(tmp_path: Path, family: str) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    for directory, files in ((one, 1), (several, 3)):
        directory.mkdir()
        write_checkpoint(directory, family, files=files)
    assert not (several / "model.safetensors").exists()
    whole, parts = load(one, family), load(several, family)
    for (name, a), (_, b) in zip(whole.named_parameters(), parts.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    for a, b in zip(experts_of(whole), experts_of(parts), strict=True):
        for left, right in zip(a.weights, b.weights, strict=True):
            assert all(torch.equal(left[name], right[name]) for name in left)


def experts_of(model: Any) -> list[MappedExperts]:
    return [module for module in model.modules() if isinstance(module, MappedExperts)]


def test_weights_are_views_of_the_file_in_the_dtype_that_is_served(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "mixtral")
    mapped = load(tmp_path, "mixtral")
    storages = {p.untyped_storage().data_ptr() for p in mapped.parameters()}
    for experts in experts_of(mapped):
        storages |= {w.untyped_storage().data_ptr() for e in experts.weights for w in e.values()}
    size = (tmp_path / "model.safetensors").stat().st_size
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in maps
        if line.endswith(str(tmp_path / "model.safetensors"))
    ]
    assert sum(stop - start for start, stop in ranges) >= size
    assert all(any(start <= at < stop for start, stop in ranges) for at in storages)


def test_another_dtype_is_converted_but_for_what_the_model_wants_precise(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "deepseek_v3")
    model = load(tmp_path, "deepseek_v3", torch.bfloat16)
    assert model.lm_head.weight.dtype is torch.bfloat16
    assert experts_of(model)[0].weights[0]["gate_proj"].dtype is torch.bfloat16
    assert model.model.layers[1].mlp.gate.e_score_correction_bias.dtype is torch.float32
    assert model.model.rotary_emb.inv_freq.dtype is torch.float32


def test_experts_may_be_packed_as_the_models_code_has_them(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen3_moe")
    plain = load(tmp_path, "qwen3_moe")
    weights = stored(tmp_path)
    for layer in (0, 2):
        at = f"model.layers.{layer}.mlp.experts"
        each = {
            name: np.stack([weights.pop(f"{at}.{e}.{name}.weight") for e in range(4)])
            for name in ("gate_proj", "up_proj", "down_proj")
        }
        weights[f"{at}.gate_up_proj"] = np.concatenate((each["gate_proj"], each["up_proj"]), 1)
        weights[f"{at}.down_proj"] = each["down_proj"]
    save_weights(tmp_path, weights)
    packed = load(tmp_path, "qwen3_moe")
    for a, b in zip(experts_of(plain), experts_of(packed), strict=True):
        for left, right in zip(a.weights, b.weights, strict=True):
            assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_tied_head_is_the_embedding_whether_stored_or_not(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen2", tie_word_embeddings=True)
    model = load(tmp_path, "qwen2")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    weights = stored(tmp_path)
    save_weights(tmp_path, weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    model = load(tmp_path, "qwen2")
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_frequencies_of_old_checkpoints_are_passed_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_weights(tmp_path, stored(tmp_path) | {name: np.ones(8, np.float32)})
    load(tmp_path, "llama")


@pytest.mark.parametrize(
    ("family", "lost"),
    [
        ("llama", "model.layers.1.mlp.down_proj.weight"),
        ("qwen2", "model.layers.0.self_attn.k_proj.bias"),
        ("mixtral", "model.layers.2.block_sparse_moe.experts.3.w2.weight"),
        ("deepseek_v3", "model.layers.1.mlp.gate.e_score_correction_bias"),
        ("qwen3", "lm_head.weight"),
    ],
)
def test_a_missing_weight_is_named(tmp_path: Path, family: str, lost: str) -> None:
    write_checkpoint(tmp_path, family)
    weights = stored(tmp_path)
    del weights[lost]
    save_weights(tmp_path, weights)
    with pytest.raises(ModelError, match="lacks 1 weights of a") as refusal:
        load(tmp_path, family)
    assert FAMILIES[family].weight_name(lost) in str(refusal.value)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("llama", "model.layers.3.input_layernorm.weight"),
        ("llama", "visual.patch_embed.weight"),
        ("llama", "model.layers.0.mlp.experts.0.up_proj.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.4.w1.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.0.w4.weight"),
        ("deepseek_v3", "model.layers.4.input_layernorm.weight"),
    ],
)
def test_a_weight_without_a_place_is_named(tmp_path: Path, family: str, name: str) -> None:
    """Left out it could change every answer: a bias, say, that this model's code does not add."""
    write_checkpoint(tmp_path, family)
    save_weights(tmp_path, stored(tmp_path) | {name: np.ones(64, np.float32)})
    with pytest.raises(ModelError, match="has no place in a") as refusal:
        load(tmp_path, family)
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.norm.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.1.w1.weight"),
    ],
)
def test_a_weight_of_another_shape_is_named(tmp_path: Path, family: str, name: str) -> None:
    write_checkpoint(tmp_path, family)
    save_weights(tmp_path, stored(tmp_path) | {name: np.ones((3, 5), np.float32)})
    with pytest.raises(
        ModelError, match=r"wrong shape: it is \[3, 5\], the model needs"
    ) as refusal:
        load(tmp_path, family)
    assert name in str(refusal.value)


def test_a_broken_file_and_a_config_of_nonsense_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path, "llama")
    path.write_bytes(whole)
    (tmp_path / "config.json").write_text(json.dumps({**config_of("llama"), "hidden_size": "wide"}))
    with pytest.raises(ModelError, match=r"does not take config\.json"):
        load(tmp_path, "llama")
