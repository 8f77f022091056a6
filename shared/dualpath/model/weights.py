"""A checkpoint's weights, mapped from its files into `transformers`' model code.

Where the files have the dtype that is served, the weights on a CPU are the files' own pages: loading copies
nothing, and the processes of a host share them. Otherwise tensors are converted one by one, a copy per process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dualpath.model.attention import IMPLEMENTATION
from dualpath.model.checkpoint import weight_files
from dualpath.model.errors import ModelError
from dualpath.model.experts import MappedExperts
from dualpath.model.families import Family

_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(\w+)\.weight")
_PACKED = re.compile(r"(.+\.mlp\.experts)\.(gate_up_proj|down_proj)")
_NO_WEIGHTS = re.compile(r".*rotary_emb\.inv_freq")
"""Old checkpoints hold these, though they follow from the config."""

_NONSENSE = (StrictDataclassError, OSError, ValueError, TypeError, KeyError, AttributeError)
"""What the model's code raises for values that make no sense to it."""


def load_model(directory: Path, family: Family, dtype: torch.dtype, device: torch.device) -> Any:
    """The family's model for causal language modelling. Raises ModelError where a tensor is missing, has another
    shape, or has no place in the model, and where files cannot be read."""
    try:
        model = _without_weights(directory, family, dtype)
    except _NONSENSE as error:
        raise ModelError(
            f"the model's code does not take config.json in {directory}: {error}; copy the checkpoint again"
        ) from error
    weights = _Weights(model, family, dtype, device)
    try:
        for path in weight_files(directory):
            for name, tensor in _tensors(path):
                weights.place(name, tensor)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"weights in {directory} cannot be read: {error}; copy the checkpoint again"
        ) from error
    weights.check()
    return model.eval().to(device)


def _without_weights(directory: Path, family: Family, dtype: torch.dtype) -> Any:
    """The model's modules; parameters have shapes only."""
    model_class = getattr(transformers, family.model_class)
    config = model_class.config_class.from_pretrained(directory, local_files_only=True)
    with torch.device("meta"):
        model = model_class._from_config(config, dtype=dtype, attn_implementation=IMPLEMENTATION)
    # Its frequencies are in no checkpoint: they are computed here, out of the config.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    packed = [name for name, _ in model.named_modules() if name.endswith(".mlp.experts")]
    for name in packed:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, MappedExperts(model.get_submodule(name)))
    return model


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """A file's tensors by name, as views of its mapping."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (no mapping)
            yield name, file.get_tensor(name)


class _Weights:
    """Puts tensors in their places in a model."""

    def __init__(
        self, model: Any, family: Family, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._model, self._family, self._dtype, self._device = model, family, dtype, device
        self._layers = len(model.model.layers)
        self._further = self._layers + (getattr(model.config, "num_nextn_predict_layers", 0) or 0)
        precise = model._keep_in_fp32_modules_strict or ()
        self._precise = re.compile("|".join(map(re.escape, precise)) or "(?!)")

    def place(self, stored_name: str, tensor: Tensor) -> None:
        """Raises ModelError for a tensor that has no place, or not the shape of its place."""
        name = self._family.weight_name(stored_name)
        if self._passed_over(name):
            return
        dtype = torch.float32 if self._precise.search(name) else self._dtype
        tensor = tensor.to(self._device, dtype)
        try:
            if expert := _EXPERT.fullmatch(name):
                self._experts(expert[1]).place(int(expert[2]), expert[3], tensor)
            elif packed := _PACKED.fullmatch(name):
                self._place_packed(self._experts(packed[1]), packed[2], tensor)
            else:
                self._place_plain(name, tensor)
        except LookupError as error:
            raise ModelError(
                f"the checkpoint's {stored_name} has no place in a {self._family.model_type} model ({error}); "
                "is config.json the one that belongs to these weights?"
            ) from None
        except ValueError as error:
            raise ModelError(
                f"the checkpoint's {stored_name} has the wrong shape: {error}; "
                "is config.json the one that belongs to these weights?"
            ) from None

    def check(self) -> None:
        """Tie what is tied; raises ModelError where a weight is missing."""
        model = self._model
        if model.config.tie_word_embeddings:
            model.lm_head.weight = model.model.embed_tokens.weight
        missing = [name for name, tensor in model.named_parameters() if tensor.is_meta]
        missing += [name for name, tensor in model.named_buffers() if tensor.is_meta]
        for name, module in model.named_modules():
            if isinstance(module, MappedExperts):
                missing += [f"{name}.{weight}" for weight in module.missing()]
        if missing:
            raise ModelError(
                f"the checkpoint lacks {len(missing)} weights of a {self._family.model_type} model, "
                f"{missing[0]} among them; copy it again"
            )

    def _passed_over(self, name: str) -> bool:
        """What checkpoints hold beside the model: layers that predict further tokens, a tied head, RoPE."""
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        further = layer is not None and self._layers <= int(layer[1]) < self._further
        tied = name == "lm_head.weight" and self._model.config.tie_word_embeddings
        return further or tied or _NO_WEIGHTS.fullmatch(name) is not None

    def _experts(self, name: str) -> MappedExperts:
        module = _submodule(self._model, name)
        if not isinstance(module, MappedExperts):
            raise LookupError(f"{name} are no experts")
        return module

    def _place_packed(self, experts: MappedExperts, kind: str, tensor: Tensor) -> None:
        """`[experts, …]`, as `transformers` has them in memory and may store them."""
        for expert, weight in enumerate(tensor):
            if kind == "down_proj":
                experts.place(expert, kind, weight)
                continue
            gate, up = weight.chunk(2)
            experts.place(expert, "gate_proj", gate)
            experts.place(expert, "up_proj", up)

    def _place_plain(self, name: str, tensor: Tensor) -> None:
        parent, _, leaf = name.rpartition(".")
        module = _submodule(self._model, parent)
        expected = module._parameters.get(leaf, module._buffers.get(leaf))
        if expected is None:
            raise LookupError(f"{parent} has no {leaf}")
        if expected.shape != tensor.shape:
            raise ValueError(f"it is {list(tensor.shape)}, the model needs {list(expected.shape)}")
        if leaf in module._parameters:
            module._parameters[leaf] = torch.nn.Parameter(tensor, requires_grad=False)
        else:
            module._buffers[leaf] = tensor


def _submodule(model: Any, name: str) -> torch.nn.Module:
    try:
        found: torch.nn.Module = model.get_submodule(name)
    except AttributeError as error:
        raise LookupError(str(error)) from None
    return found
