"""Mooncake's open trace format: a request per line, its prompt as hash ids of blocks of 512 tokens.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}

`timestamp` is in milliseconds. Equal hash ids mean equal blocks after equal prompts (Qin et al., Mooncake, FAST '25).
Each request is a trajectory of one turn here: the format does not say whose turn it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dualpath.loadgen.traces.lines import MAX_SECONDS, MAX_TOKENS, Line
from dualpath.loadgen.traces.model import Trace, Trajectory, Turn

BLOCK_TOKENS = 512
_MAX_HASH_ID = (1 << 63) - 1


def read_mooncake(path: Path, lines: Iterable[Line]) -> Trace:
    """In the order of arrival. Raises TraceError."""
    read = [_trajectory(line) for line in lines]
    read.sort(key=lambda trajectory: trajectory.arrival_s or 0.0)
    return Trace(
        path.stem, tuple(read), source=f"Mooncake's format: {path.name}", block_tokens=BLOCK_TOKENS
    )


def _trajectory(line: Line) -> Trajectory:
    milliseconds = line.integer("timestamp", 0, int(MAX_SECONDS * 1000))
    length = line.integer("input_length", 1, MAX_TOKENS)
    generated = line.integer("output_length", 1, MAX_TOKENS)
    wanted = -(-length // BLOCK_TOKENS)
    ids = line.items(line.fields.get("hash_ids"), "hash_ids", high=MAX_TOKENS // BLOCK_TOKENS)
    if len(ids) != wanted:
        line.wrong(
            f"an input_length of {length} has {wanted} blocks of {BLOCK_TOKENS} tokens, "
            f"but there are {len(ids)} hash_ids"
        )
    blocks = tuple(line.as_integer(value, "a hash id", 0, _MAX_HASH_ID) for value in ids)
    turn = Turn(length, generated, blocks=blocks)
    return Trajectory(f"line-{line.number}", (turn,), arrival_s=milliseconds / 1000)


def mooncake_lines(trace: Trace, *, answer_s: float = 0.0) -> Iterator[dict[str, Any]]:
    """A trace in this format, in the order of its timestamps.

    Turns become requests of their own, `answer_s` and their delay after the one before. Generated tokens become
    blocks as appended ones do. Blocks that trajectories share are found where the trace has hash ids of the same
    block length; other trajectories share nothing. Raises ValueError for text."""
    requests: list[tuple[float, dict[str, Any]]] = []
    numbers: dict[object, int] = {}
    for index in range(len(trace)):
        trajectory = trace.agent(index)
        if any(turn.messages for turn in trajectory.turns):
            raise ValueError("recorded conversations have no token ids to make blocks of")
        time_s = trajectory.arrival_s or 0.0
        for turn, context in zip(trajectory.turns, trajectory.contexts(), strict=True):
            time_s += turn.delay_s
            count = -(-context // BLOCK_TOKENS)
            if turn.blocks and trace.block_tokens == BLOCK_TOKENS and len(trajectory.turns) == 1:
                keys: list[object] = [("block", block) for block in turn.blocks]
            else:
                whole = context // BLOCK_TOKENS
                keys = [("whole", index, number) for number in range(whole)]
                keys += [("part", index, context)] * (count - whole)
            requests.append(
                (
                    time_s,
                    {
                        "timestamp": round(time_s * 1000),
                        "input_length": context,
                        "output_length": turn.generate_tokens,
                        "hash_ids": [numbers.setdefault(key, len(numbers)) for key in keys],
                    },
                )
            )
            time_s += answer_s
    requests.sort(key=lambda request: request[0])
    return (request for _, request in requests)
