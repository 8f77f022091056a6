"""Experts one by one give what the formula says, for each token by itself."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from dualpath.model.experts import PROJECTIONS, MappedExperts

HIDDEN, INNER, COUNT, CHOSEN = 8, 6, 5, 2


@pytest.fixture
def experts() -> MappedExperts:
    torch.manual_seed(0)
    packed = SimpleNamespace(
        intermediate_dim=INNER, hidden_dim=HIDDEN, num_experts=COUNT, act_fn=silu
    )
    module = MappedExperts(packed)
    for expert in range(COUNT):
        for name in PROJECTIONS:
            shape = (HIDDEN, INNER) if name == "down_proj" else (INNER, HIDDEN)
            module.place(expert, name, torch.randn(shape))
    return module


def routed(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, and each token's experts, all different, with their shares."""
    indices = torch.stack([torch.randperm(COUNT - 1)[:CHOSEN] for _ in range(tokens)])
    return torch.randn(tokens, HIDDEN), indices, torch.rand(tokens, CHOSEN)


def test_each_token_gets_its_experts_by_their_shares(experts: MappedExperts) -> None:
    hidden, indices, shares = routed(20)
    output = experts(hidden, indices, shares)
    for token in range(20):
        expected = torch.zeros(HIDDEN)
        for expert, share in zip(indices[token].tolist(), shares[token], strict=True):
            weights = experts.weights[expert]
            inner = silu(weights["gate_proj"] @ hidden[token]) * (
                weights["up_proj"] @ hidden[token]
            )
            expected += share * (weights["down_proj"] @ inner)
        torch.testing.assert_close(output[token], expected)


def test_a_token_that_is_no_number_spoils_no_other(experts: MappedExperts) -> None:
    hidden, indices, shares = routed(6)
    clean = experts(hidden, indices, shares)
    hidden[2], shares[2] = math.nan, math.nan
    output = experts(hidden, indices, shares)
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(output[others], clean[others])
    assert output[2].isnan().all()


def test_what_is_missing_is_named(experts: MappedExperts) -> None:
    assert experts.missing() == []
    del experts.weights[3]["up_proj"]
    assert experts.missing() == ["3.up_proj.weight"]


def test_weights_that_the_model_has_not_are_refused(experts: MappedExperts) -> None:
    with pytest.raises(LookupError, match="no up_proj of an expert 5"):
        experts.place(COUNT, "up_proj", torch.zeros(INNER, HIDDEN))
    with pytest.raises(LookupError, match="no w4 of an expert 0"):
        experts.place(0, "w4", torch.zeros(INNER, HIDDEN))
    with pytest.raises(ValueError, match=r"it is \[6, 8\], the model needs \[8, 6\]"):
        experts.place(0, "down_proj", torch.zeros(INNER, HIDDEN))
