"""What is known of families without torch: rows of KV-Cache, names, and refusals in sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import FAMILIES as MADE
from tests.support.checkpoints import config_of, write_checkpoint

from dualpath.blocks import KVPart
from dualpath.model.api import ModelError
from dualpath.model.families import FAMILIES, CachePart, family_of
from dualpath.model.spec import checkpoint_geometry, load_spec
from dualpath.settings import Settings

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen2.5-32B": (
        {"model_type": "qwen2", "hidden_size": 5120, "num_hidden_layers": 64,
         "num_attention_heads": 40, "num_key_value_heads": 8},
        262_144,
    ),
    "Qwen3-8B": (
        {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
        147_456,
    ),
    "Qwen3-30B-A3B": (
        {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
        98_304,
    ),
    "Mixtral-8x7B": (
        {"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768},
        131_072,
    ),
    "DeepSeek-V3": (
        {"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
         "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
        61 * (512 + 64) * 2,
    ),
}  # fmt: skip
"""Fields of published configs, and bytes of KV-Cache per token in bfloat16."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_per_token_of_published_models(name: str) -> None:
    config, expected = PUBLISHED[name]
    geometry = checkpoint_geometry(family_of(config), config, "bfloat16", 64)
    assert geometry.token_bytes == expected
    assert geometry.n_layers == config["num_hidden_layers"]


def test_latent_and_rope_are_parts_of_different_width() -> None:
    config = config_of("deepseek_v3")
    geometry = checkpoint_geometry(family_of(config), config, "float32", 64)
    assert geometry.layers == ((KVPart("latent", 32 * 4), KVPart("rope", 8 * 4)),) * 3


def test_every_family_can_be_made_by_the_tests() -> None:
    assert set(MADE) == set(FAMILIES)


@pytest.mark.parametrize("family", MADE)
def test_spec_of_a_checkpoint(tmp_path: Path, family: str) -> None:
    write_checkpoint(tmp_path, family, files=2)
    spec = load_spec(Settings(model=str(tmp_path), dtype="float32", home=tmp_path / "home"))
    assert (spec.family, spec.vocab_size, spec.max_context) == (family, 512, 4096)


def test_what_configs_leave_out_is_as_the_models_code_has_it() -> None:
    given = {"num_attention_heads": 64, "hidden_size": 2048, "max_position_embeddings": 4096}
    heads = {
        name: (part.heads, part.width)
        for name in ("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe")
        for part in FAMILIES[name].parts({"model_type": name, **given}, 0)
    }
    assert heads == {
        "llama": (64, 32),
        "qwen2": (32, 32),
        "qwen3": (32, 128),
        "mixtral": (8, 32),
        "qwen3_moe": (4, 32),
    }


def test_names_of_mixtrals_weights() -> None:
    name_of = FAMILIES["mixtral"].weight_name
    at = "model.layers.3"
    assert name_of(f"{at}.block_sparse_moe.gate.weight") == f"{at}.mlp.gate.weight"
    for stored, meant in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
        stored_name = f"{at}.block_sparse_moe.experts.7.{stored}.weight"
        assert name_of(stored_name) == f"{at}.mlp.experts.7.{meant}.weight"
    assert name_of("lm_head.weight") == "lm_head.weight"


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("qwen2", {"use_sliding_window": True}, "sliding window"),
        ("qwen3", {"use_sliding_window": True}, "sliding window"),
        ("qwen3_moe", {"use_sliding_window": True}, "sliding window"),
        ("mixtral", {"sliding_window": 1024}, "sliding window"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "unquantized"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank is None"),
        ("qwen2", {"num_attention_heads": "40"}, "num_attention_heads is '40'"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("llama", {"vocab_size": None}, "vocab_size is None"),
        ("llama", {"max_position_embeddings": None}, "max_position_embeddings is None"),
    ],
)
def test_refused_configs(tmp_path: Path, family: str, changes: dict[str, Any], said: str) -> None:
    write_checkpoint(tmp_path, family)
    (tmp_path / "config.json").write_text(json.dumps({**config_of(family), **changes}))
    with pytest.raises(ModelError, match=said):
        load_spec(Settings(model=str(tmp_path), dtype="float32", home=tmp_path / "home"))


def test_a_window_that_holds_the_whole_context_is_none() -> None:
    config = {**config_of("mixtral"), "sliding_window": 4096}
    assert family_of(config).parts(config, 0) == (CachePart("k", 2, 16), CachePart("v", 2, 16))


def test_other_families_are_refused_with_the_names_of_those_that_are_supported() -> None:
    with pytest.raises(ModelError) as refusal:
        family_of({"model_type": "gpt2"})
    assert str(refusal.value) == (
        "model family 'gpt2' is not supported; "
        "supported: deepseek_v3, llama, mixtral, qwen2, qwen3, qwen3_moe"
    )
