from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.blocks import IllegalTransition, Phase, advance
from dualpath.blocks.lifecycle import TERMINAL, TRANSITIONS

WAY = [
    Phase.QUEUED,
    Phase.PAIRED,
    Phase.LOADING,
    Phase.PREFILL,
    Phase.HANDOFF,
    Phase.DECODE,
    Phase.DONE,
]


def test_a_request_goes_the_whole_way() -> None:
    phase = WAY[0]
    for target in WAY[1:]:
        phase = advance(phase, target)
    assert phase is Phase.DONE


def test_one_token_ends_without_decoding() -> None:
    assert advance(Phase.HANDOFF, Phase.DONE) is Phase.DONE


@given(st.lists(st.sampled_from(Phase), max_size=30))
def test_any_walk_goes_forward_and_ends_for_good(targets: list[Phase]) -> None:
    phase = Phase.QUEUED
    for target in targets:
        if target in TRANSITIONS[phase]:
            moved = advance(phase, target)
            assert moved is target
            assert target in TERMINAL or WAY.index(target) == WAY.index(phase) + 1
            phase = moved
        else:
            with pytest.raises(IllegalTransition, match=f"from {phase.value} to {target.value}"):
                advance(phase, target)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_can_be_cancelled_and_fail_until_it_has_ended(phase: Phase) -> None:
    ends = {Phase.CANCELLED, Phase.FAILED} & TRANSITIONS[phase]
    assert len(ends) == (0 if phase in TERMINAL else 2)


@pytest.mark.parametrize("phase", [Phase.DONE, Phase.CANCELLED, Phase.FAILED])
def test_nothing_comes_after_the_end(phase: Phase) -> None:
    with pytest.raises(IllegalTransition, match="it can go to nothing"):
        advance(phase, Phase.QUEUED)
