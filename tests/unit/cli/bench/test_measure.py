"""What a run is judged by, of records that no server made."""

from __future__ import annotations

from dualpath.cli.bench.measure import could_hit
from dualpath.loadgen.replay import TurnRecord


def turn(agent: int, number: int, prompt: int, generated: int) -> TurnRecord:
    made = TurnRecord(agent, number, prompt, generated, due_s=0.0)
    made.generated_tokens = generated
    return made


def test_a_turn_can_hit_full_blocks_of_what_its_agent_has_had() -> None:
    turns = [turn(0, 0, 20, 5), turn(1, 0, 16, 1), turn(0, 1, 40, 1)]
    later = 24 // 8 * 8
    assert could_hit(turns, 8, stored=False) == later
    # Of 16 tokens the last one is always computed.
    assert could_hit(turns, 8, stored=True) == later + 16 + 8
