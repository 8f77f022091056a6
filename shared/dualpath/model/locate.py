"""Where a model lies, and in which dtype it is served: decided without torch, equally in every process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from dualpath.model.errors import ModelError
from dualpath.settings import Settings

DType = Literal["bfloat16", "float32"]

NAMED = ("smollm2", "tiny", "synthetic")
"""Models that `prepare_model` makes; any other name is a directory."""

TINY_VERSION = 1
"""Raised whenever the files that are made for `tiny` or `synthetic` change."""

_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""CPU flags (x86, then ARM) of arithmetic on bfloat16; without them every product would be converted."""

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def resolve_dtype(settings: Settings) -> DType:
    """The dtype of weights and KV that `settings` ask for.

    `auto` is bfloat16 on a CUDA device or on a CPU that multiplies it natively, else float32; `tiny` is made
    for exact comparisons and is float32. Where a cluster spans unlike machines, resolve it once and pass it
    on: `settings.model_copy(update={"dtype": …})`.
    """
    if settings.dtype != "auto":
        return settings.dtype
    if settings.model in ("tiny", "synthetic"):
        return "float32"
    cuda = settings.device == "cuda" or (
        settings.device == "auto" and Path("/proc/driver/nvidia/version").exists()
    )
    return "bfloat16" if cuda or _native_bf16(Path("/proc/cpuinfo")) else "float32"


def _native_bf16(cpuinfo: Path) -> bool:
    if not cpuinfo.is_file():
        return False
    for line in cpuinfo.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return not _BF16_FLAGS.isdisjoint(value.split())
    return False


def model_directory(settings: Settings) -> Path:
    """Where the model's files are, or will be once `prepare_model` ran."""
    models = settings.home / "models"
    match settings.model:
        case "smollm2":
            return models / f"smollm2-{resolve_dtype(settings)}"
        case "tiny":
            return models / f"tiny-{TINY_VERSION}"
        case "synthetic":
            return models / f"synthetic-{settings.synthetic.vocab_size}-{TINY_VERSION}"
        case directory:
            return Path(directory).expanduser()


def own_directory(settings: Settings) -> Path:
    """`model_directory` of a model that is none of the named ones. Raises ModelError where it is not there, with what
    to give instead."""
    directory = model_directory(settings)
    if directory.is_dir():
        return directory
    advice = "give smollm2, tiny, synthetic, or a directory with a Hugging Face checkpoint"
    if (name := _hub_name(directory)) is not None:
        advice += f"; of the Hub's {name}: hf download {name} --local-dir {directory.name}"
    raise ModelError(f"no model directory at {directory}; {advice}")


def _hub_name(directory: Path) -> str | None:
    """What was given for this directory, where that looks like ORGANIZATION/NAME and not like a path."""
    here = Path.cwd()
    if not directory.is_relative_to(here) or directory.parent.is_dir():
        return None
    name = str(directory.relative_to(here))
    return name if _HUB_NAME.fullmatch(name) else None
