"""`tiny`: a Llama of random weights that is made in a second, for tests and first steps. No torch.

Its answers are noise, but varied, far from ties, and dependent on every token before: a wrong byte of KV
shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from dualpath.model.bytelevel import END_ID, PAD_ID, START_ID, write_tokenizer

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": START_ID,
    "dtype": "float32",
    "eos_token_id": END_ID,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 192,
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": PAD_ID,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 512,
}
_SEED = 2602
_GAIN = {"q_proj": 1.5, "k_proj": 1.5, "v_proj": 1.0, "o_proj": 1.5, "lm_head": 4.0}
"""Standard deviation of a projection's output for normalized input. Queries and keys make attention
pick some tokens clearly, `lm_head` sets logits far apart."""


def write_tiny(directory: Path) -> None:
    """Write the whole checkpoint into an existing directory: config, weights, tokenizer."""
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n", encoding="utf-8")
    save_file(_weights(), directory / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(directory, CONFIG["vocab_size"], CONFIG["max_position_embeddings"])


def _weights() -> dict[str, NDArray[np.float32]]:
    """Equal on every machine: this generator's uniform stream is frozen and needs no libm."""
    random = np.random.RandomState(_SEED)
    hidden, inner, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    queries = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    keys = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]

    def matrix(name: str, rows: int, columns: int) -> NDArray[np.float32]:
        bound = _GAIN.get(name, 1.0) * (3.0 / columns) ** 0.5
        drawn: NDArray[np.float64] = random.random_sample((rows, columns))
        return np.asarray((drawn * 2 - 1) * bound, np.float32)

    ones = np.ones(hidden, np.float32)
    weights = {
        "model.embed_tokens.weight": matrix("embed", vocab, hidden) * np.float32(hidden**0.5),
        "model.norm.weight": ones,
        "lm_head.weight": matrix("lm_head", vocab, hidden),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows, columns in (
            ("q_proj", queries, hidden),
            ("k_proj", keys, hidden),
            ("v_proj", keys, hidden),
            ("o_proj", hidden, queries),
        ):
            weights[f"{at}self_attn.{name}.weight"] = matrix(name, rows, columns)
        for name, rows, columns in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            weights[f"{at}mlp.{name}.weight"] = matrix(name, rows, columns)
        weights[f"{at}input_layernorm.weight"] = ones
        weights[f"{at}post_attention_layernorm.weight"] = ones
    return weights
