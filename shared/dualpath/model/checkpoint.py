"""The files of a Hugging Face checkpoint directory, read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualpath.model.errors import ModelError

_IRRELEVANT = frozenset(
    {
        "architectures",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Fields of config.json that do not change KV-Cache: tools rewrite them freely."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises ModelError where it is missing or is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{path.name} is missing in {path.parent}; is this a Hugging Face checkpoint?"
        ) from None
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}; copy the checkpoint again") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object; copy the checkpoint again")
    return content


def config_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of config.json may change KV-Cache, for the fingerprint."""
    return {
        name: value
        for name, value in config.items()
        if name not in _IRRELEVANT and not name.startswith("_")
    }


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, by name; raises ModelError where there are none, or some lack."""
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        files = [directory / name for name in names]
    else:
        files = [single]
    if files == [single] and not single.is_file():
        if any(directory.glob("*.bin")) or any(directory.glob("*.pt*")):
            raise ModelError(
                f"{directory} holds pickled weights, which may run code when loaded; "
                "convert them to safetensors (save_pretrained does)"
            )
        raise ModelError(
            f"no weights in {directory}: expected model.safetensors or its index; copy the checkpoint again"
        )
    for path in files:
        if path.parent != directory:
            raise ModelError(f"{index} names {path}, which is not a file beside it")
        if not path.is_file():
            raise ModelError(f"{path} is missing, though {index.name} names it; copy it again")
    return files
