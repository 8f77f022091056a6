"""Experts that compute on weights where the checkpoint has them, each expert's for itself.

`transformers` packs all experts of a layer into one tensor: a copy of nearly the whole checkpoint in every
process. These are views of the mapped file, which all processes of a host share.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class MappedExperts(torch.nn.Module):
    """Takes the place of the model code's packed experts. `weights[e]` has expert e's, by the names in
    `PROJECTIONS`; whoever places them gives them the device and dtype that are served."""

    def __init__(self, packed: Any) -> None:
        """`packed` is the module that is replaced; nothing of its weights is kept."""
        super().__init__()
        self.inner, self.hidden = packed.intermediate_dim, packed.hidden_dim
        self.weights: list[dict[str, Tensor]] = [{} for _ in range(packed.num_experts)]
        self._activation = packed.act_fn

    def place(self, expert: int, projection: str, weight: Tensor) -> None:
        """Raises LookupError for an expert or projection that the model has not, ValueError for another shape."""
        if projection not in PROJECTIONS or not 0 <= expert < len(self.weights):
            raise LookupError(f"the model has no {projection} of an expert {expert}")
        wide = (self.hidden, self.inner) if projection == "down_proj" else (self.inner, self.hidden)
        if weight.shape != wide:
            raise ValueError(f"it is {list(weight.shape)}, the model needs {list(wide)}")
        self.weights[expert][projection] = weight

    def missing(self) -> list[str]:
        """The weights that have not been placed."""
        return [
            f"{expert}.{projection}.weight"
            for expert, weights in enumerate(self.weights)
            for projection in PROJECTIONS
            if projection not in weights
        ]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """`[tokens, hidden]`, and each token's experts and their shares, `[tokens, k]` → `[tokens, hidden]`."""
        output = torch.zeros_like(hidden_states)
        for expert in torch.unique(top_k_index).tolist():
            tokens, choices = torch.where(top_k_index == expert)
            weights = self.weights[expert]
            chosen = hidden_states[tokens]
            inner = self._activation(linear(chosen, weights["gate_proj"]))
            inner = inner * linear(chosen, weights["up_proj"])
            result = linear(inner, weights["down_proj"]) * top_k_weights[tokens, choices, None]
            output.index_add_(0, tokens, result.to(output.dtype))
        return output
