from __future__ import annotations

from typing import get_args

import pytest

from dualpath.policy.registry import (
    PLACEMENTS,
    READ_PATHS,
    batch_policy,
    placement_policy,
    read_path_policy,
)
from dualpath.settings import Mode, ReadPathChoice, Settings


def test_every_choice_of_the_settings_has_a_policy() -> None:
    assert set(READ_PATHS) == set(get_args(ReadPathChoice))
    for mode in get_args(Mode):
        settings = Settings(mode=mode, model="synthetic")
        assert placement_policy(settings.use_placement)
        assert read_path_policy(settings.use_read_path)


def test_policies_are_not_shared() -> None:
    assert placement_policy("least-tokens") is not placement_policy("least-tokens")
    assert batch_policy("token-budget", 7) is not batch_policy("token-budget", 7)


@pytest.mark.parametrize("find", [placement_policy, read_path_policy, lambda n: batch_policy(n, 1)])
def test_an_unknown_name_is_answered_with_those_that_exist(find) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"no .* policy 'best'; use one of .+"):
        find("best")


def test_placements_are_named_as_in_the_settings() -> None:
    assert set(PLACEMENTS) == {"least-tokens", "round-robin"}
