from __future__ import annotations

from typing import get_args

import pytest

from dualpath.policy.attention import AttentionFit
from dualpath.policy.batching import QuotaBatch, TokenBudget
from dualpath.policy.registry import (
    PLACEMENTS,
    READ_PATHS,
    Side,
    batch_policy,
    ordering_policy,
    placement_policy,
    read_path_policy,
)
from dualpath.settings import Mode, PlacementChoice, ReadPathChoice, Settings


def test_every_choice_of_the_settings_has_a_policy() -> None:
    assert set(READ_PATHS) == set(get_args(ReadPathChoice))
    for mode in get_args(Mode):
        settings = Settings(mode=mode, model="synthetic")
        for side in get_args(Side):
            assert placement_policy(settings.use_placement, side) is not None
        assert read_path_policy(settings.use_read_path)


def test_policies_are_not_shared() -> None:
    one, other = (placement_policy("adaptive", "decode") for _ in range(2))
    assert one is not other
    assert batch_policy("token-budget", 7) is not batch_policy("token-budget", 7)


@pytest.mark.parametrize(
    "find",
    [
        lambda name: placement_policy(name, "decode"),
        lambda name: ordering_policy(name, 1.0),
        read_path_policy,
        lambda name: batch_policy(name, 1),
    ],
)
def test_an_unknown_name_is_answered_with_those_that_exist(find) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"no .* policy 'best'; use one of .+"):
        find("best")


def test_placements_are_named_as_in_the_settings() -> None:
    assert set(PLACEMENTS) == set(get_args(PlacementChoice))


def test_a_quota_without_a_fit_is_a_token_budget() -> None:
    assert isinstance(batch_policy("quota", 7), TokenBudget)
    assert isinstance(batch_policy("quota", 7, AttentionFit(0, 0, 1)), QuotaBatch)
