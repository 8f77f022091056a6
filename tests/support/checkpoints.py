"""Small checkpoints of every family, made of random numbers: the same everywhere, as the hub would have them.

The gains are chosen so that greedy answers are varied and far from ties.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from dualpath.model.bytelevel import END_ID, START_ID, write_tokenizer

VOCAB = 512
CONTEXT = 4096
HIDDEN = 64

_COMMON: dict[str, Any] = {
    "bos_token_id": START_ID,
    "eos_token_id": END_ID,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "max_position_embeddings": CONTEXT,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 96},
    "qwen2": {"intermediate_size": 96, "use_sliding_window": False, "max_window_layers": 1},
    "qwen3": {"intermediate_size": 96, "head_dim": 24},
    "mixtral": {
        "intermediate_size": 48,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3_moe": {
        "intermediate_size": 96,
        "moe_intermediate_size": 48,
        "head_dim": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "deepseek_v3": {
        "intermediate_size": 96,
        "moe_intermediate_size": 48,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "num_nextn_predict_layers": 1,
    },
}
"""By `model_type`. Values' width differs from keys' in deepseek_v3, whose third layer is followed by one that
predicts further tokens; the second layer of qwen3_moe has no experts."""

FAMILIES = tuple(CONFIGS)

_GAIN = {"q_proj": 1.5, "k_proj": 1.5, "o_proj": 1.5, "q_b_proj": 2.0, "gate": 4.0, "lm_head": 4.0}
"""Standard deviation of a projection's output for normalized input."""

Weights = dict[str, NDArray[np.float32]]


def config_of(family: str) -> dict[str, Any]:
    return {"model_type": family, **_COMMON, **CONFIGS[family]}


def write_checkpoint(directory: Path, family: str, *, files: int = 1, **changes: Any) -> Path:
    """Config, weights in so many files, and the byte tokenizer, in a directory that exists; returns it."""
    config = {**config_of(family), **changes}
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    save_weights(directory, dict(_weights(config)), files)
    write_tokenizer(directory, config["vocab_size"], config["max_position_embeddings"])
    return directory


def save_weights(directory: Path, weights: Weights, files: int = 1) -> None:
    """One file, or several and their index."""
    if files == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number in range(files):
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = dict(list(weights.items())[number::files])
        save_file(part, directory / name, metadata={"format": "pt"})
        places |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _weights(config: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    random = np.random.RandomState(2602)

    def uniform(rows: int, columns: int) -> NDArray[np.float64]:
        drawn: NDArray[np.float64] = random.random_sample((rows, columns))
        return drawn * 2 - 1

    def matrix(name: str, rows: int, columns: int) -> tuple[str, NDArray[np.float32]]:
        gain = _GAIN.get(name.rsplit(".", 2)[-1], 1.0)
        drawn = uniform(rows, columns) * gain * (3.0 / columns) ** 0.5
        return f"{name}.weight", drawn.astype(np.float32)

    def vector(name: str, width: int, middle: float = 1.0) -> tuple[str, NDArray[np.float32]]:
        return name, (middle + 0.3 * uniform(1, width)[0]).astype(np.float32)

    hidden, vocab = config["hidden_size"], config["vocab_size"]
    name, embedding = matrix("model.embed_tokens", vocab, hidden)
    yield name, embedding * np.float32(hidden**0.5)
    yield vector("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        yield matrix("lm_head", vocab, hidden)
    further = config.get("num_nextn_predict_layers", 0)
    for layer in range(config["num_hidden_layers"] + further):
        at = f"model.layers.{layer}"
        yield vector(f"{at}.input_layernorm.weight", hidden)
        yield vector(f"{at}.post_attention_layernorm.weight", hidden)
        attention = _latent_attention if "kv_lora_rank" in config else _grouped_attention
        yield from attention(config, f"{at}.self_attn", matrix, vector)
        yield from _mlp(config, at, layer, matrix, vector)


Matrix = Callable[[str, int, int], tuple[str, NDArray[np.float32]]]
Vector = Callable[..., tuple[str, NDArray[np.float32]]]
Named = Iterator[tuple[str, NDArray[np.float32]]]


def _grouped_attention(config: dict[str, Any], at: str, matrix: Matrix, vector: Vector) -> Named:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    kv_heads = config["num_key_value_heads"]
    for name, count in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
        yield matrix(f"{at}.{name}", count * width, hidden)
        if config["model_type"] == "qwen2":
            yield vector(f"{at}.{name}.bias", count * width, 0.0)
    yield matrix(f"{at}.o_proj", hidden, heads * width)
    if config["model_type"].startswith("qwen3"):
        yield vector(f"{at}.q_norm.weight", width, 1.5)
        yield vector(f"{at}.k_norm.weight", width, 1.5)


def _latent_attention(config: dict[str, Any], at: str, matrix: Matrix, vector: Vector) -> Named:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, values, query = config["qk_nope_head_dim"], config["v_head_dim"], config["q_lora_rank"]
    if query is None:
        yield matrix(f"{at}.q_proj", heads * (nope + rope), hidden)
    else:
        yield matrix(f"{at}.q_a_proj", query, hidden)
        yield vector(f"{at}.q_a_layernorm.weight", query)
        yield matrix(f"{at}.q_b_proj", heads * (nope + rope), query)
    yield matrix(f"{at}.kv_a_proj_with_mqa", latent + rope, hidden)
    yield vector(f"{at}.kv_a_layernorm.weight", latent)
    yield matrix(f"{at}.kv_b_proj", heads * (nope + values), latent)
    yield matrix(f"{at}.o_proj", hidden, heads * values)


def _mlp(config: dict[str, Any], at: str, layer: int, matrix: Matrix, vector: Vector) -> Named:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    expert_inner = config.get("moe_intermediate_size", inner)

    def dense(at: str, inner: int, names: tuple[str, str, str]) -> Named:
        gate, up, down = names
        yield matrix(f"{at}.{gate}", inner, hidden)
        yield matrix(f"{at}.{up}", inner, hidden)
        yield matrix(f"{at}.{down}", hidden, inner)

    plain = ("gate_proj", "up_proj", "down_proj")
    experts = next(
        (
            config[n]
            for n in ("num_local_experts", "num_experts", "n_routed_experts")
            if n in config
        ),
        0,
    )
    without = layer in config.get("mlp_only_layers", ()) or layer < config.get(
        "first_k_dense_replace", 0
    )
    if not experts or without:
        yield from dense(f"{at}.mlp", inner, plain)
        return
    mixtral = config["model_type"] == "mixtral"
    block = f"{at}.block_sparse_moe" if mixtral else f"{at}.mlp"
    yield matrix(f"{block}.gate", experts, hidden)
    for expert in range(experts):
        names = ("w1", "w3", "w2") if mixtral else plain
        yield from dense(f"{block}.experts.{expert}", expert_inner, names)
    if "n_shared_experts" in config:
        shared = expert_inner * config["n_shared_experts"]
        yield from dense(f"{block}.shared_experts", shared, plain)
        yield vector(f"{block}.gate.e_score_correction_bias", experts, 0.0)
