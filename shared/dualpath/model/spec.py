"""What a model is, as every process of a cluster knows it. Neither torch nor transformers is loaded here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dualpath.blocks import KVGeometry, KVPart
from dualpath.model.bytelevel import END_ID
from dualpath.model.checkpoint import config_fields, read_json, weight_files
from dualpath.model.errors import ModelError
from dualpath.model.families import Family, family_of, number
from dualpath.model.fingerprint import FileHashes, fingerprint
from dualpath.model.locate import NAMED, DType, model_directory, own_directory, resolve_dtype
from dualpath.settings import Settings

ITEM_BYTES: dict[DType, int] = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class ModelSpec:
    """A model ready to be served.

    `directory` holds the checkpoint (of a synthetic model: its tokenizer only, once `prepare_model` ran).
    `eos_ids` end generation unless the client ignores them; `max_context` bounds prompt plus output.
    """

    name: str
    kind: Literal["torch", "synthetic"]
    directory: Path | None
    dtype: DType
    geometry: KVGeometry
    fingerprint: str
    vocab_size: int
    eos_ids: tuple[int, ...]
    max_context: int
    family: str


def load_spec(settings: Settings) -> ModelSpec:
    """Describe the model of `settings`; call `prepare_model` first. Reads the weights once to hash them
    (later calls find the hashes in `home/models/hashes.json`).

    Raises ModelError for a directory or file that is missing, a family that is not supported, weights that
    are not safetensors, and a `max_context` beyond the model's.
    """
    if settings.model == "synthetic":
        return _synthetic(settings)
    directory = _named(settings) if settings.model in NAMED else own_directory(settings)
    config = read_json(directory / "config.json")
    family = family_of(config)
    dtype = resolve_dtype(settings)
    geometry = checkpoint_geometry(family, config, dtype, settings.block_tokens)
    hashes = FileHashes(settings.home / "models" / "hashes.json")
    weights = {path.name: hashes.of(path) for path in weight_files(directory)}
    return ModelSpec(
        name=settings.served_name or _name(settings, directory),
        kind="torch",
        directory=directory,
        dtype=dtype,
        geometry=geometry,
        fingerprint=fingerprint(
            weights=weights, config=config_fields(config), dtype=dtype, geometry=geometry
        ),
        vocab_size=number(config, "vocab_size"),
        eos_ids=_eos_ids(directory, config),
        max_context=_context(settings, number(config, "max_position_embeddings")),
        family=family.model_type,
    )


def checkpoint_geometry(
    family: Family, config: Mapping[str, Any], dtype: DType, block_tokens: int
) -> KVGeometry:
    """Rows of KV-Cache of a checkpoint: each layer's parts, in the dtype that is served. Raises ModelError where
    the config does not say what they are."""
    size = ITEM_BYTES[dtype]
    return KVGeometry(
        block_tokens,
        tuple(
            tuple(KVPart(part.name, part.elements * size) for part in family.parts(config, layer))
            for layer in range(number(config, "num_hidden_layers"))
        ),
    )


def _synthetic(settings: Settings) -> ModelSpec:
    profile = settings.synthetic
    half = profile.row_bytes // 2
    geometry = KVGeometry(
        settings.block_tokens,
        ((KVPart("k", half), KVPart("v", profile.row_bytes - half)),) * profile.layers,
    )
    return ModelSpec(
        name=settings.served_name or "synthetic",
        kind="synthetic",
        directory=model_directory(settings),
        dtype="float32",
        geometry=geometry,
        fingerprint=fingerprint(
            weights={},
            config={"model_type": "synthetic", "vocab_size": profile.vocab_size},
            dtype="float32",
            geometry=geometry,
        ),
        vocab_size=profile.vocab_size,
        eos_ids=(END_ID,),
        max_context=_context(settings, profile.max_context),
        family="synthetic",
    )


def _context(settings: Settings, supported: int) -> int:
    wanted = settings.max_context
    if wanted is None:
        return supported
    if wanted > supported:
        raise ModelError(
            f"max_context is {wanted} tokens, but the model supports {supported}; set it to at most {supported}"
        )
    return wanted


def _eos_ids(directory: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """generation_config.json speaks for the model; config.json only where the other is silent."""
    path = directory / "generation_config.json"
    sources = [read_json(path)] if path.is_file() else []
    for source in (*sources, config):
        ids = source.get("eos_token_id")
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (int(ids),)
    raise ModelError(
        f"neither generation_config.json nor config.json in {directory} has an eos_token_id; "
        "add the id that ends an answer"
    )


def _name(settings: Settings, directory: Path) -> str:
    return settings.model if settings.model in NAMED else directory.resolve().name


def _named(settings: Settings) -> Path:
    directory = model_directory(settings)
    if directory.is_dir():
        return directory
    raise ModelError(
        f"model {settings.model} has not been prepared yet: {directory} does not exist; "
        "run `dualpath up`, or `python -m dualpath.model.prepare`"
    )


__all__ = ["DType", "ModelSpec", "checkpoint_geometry", "load_spec", "resolve_dtype"]
