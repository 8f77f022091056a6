"""In which order the layers of a forward arrive, are computed and leave."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.agents import random_ids
from tests.support.nats import NatsServer
from tests.support.rig import rig

from dualpath.prefill import engine
from dualpath.prefill.trace import ForwardTrace
from dualpath.wire.types import ReadPath

LAYERS, CACHED, NEW, ROW = 32, 2048, 64, 256
LAYER_S = 0.01
BUSIEST: dict[ReadPath, int] = {
    "prefill": (2 * CACHED + NEW) * ROW,
    "decode": CACHED * ROW,
    "split": (CACHED + NEW) * ROW,
}
"""Bytes of a layer in the NIC direction that has most to move: paced so, they take as long as the compute."""


async def forward(
    server: NatsServer,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: ReadPath,
    **settings: Any,
) -> ForwardTrace:
    """The trace of one long warm prefill."""
    traces: list[ForwardTrace] = []

    class Recorded(ForwardTrace):
        def __init__(self) -> None:
            super().__init__()
            traces.append(self)

    monkeypatch.setattr(engine, "ForwardTrace", Recorded)
    profile = {"layers": LAYERS, "row_bytes": ROW, "token_s": 0, "attention_s": 0}
    async with rig(
        server,
        home,
        cnic_bandwidth=int(BUSIEST[path] / LAYER_S),
        chunk_tokens=CACHED + NEW,
        max_context=CACHED + 2 * NEW,
        synthetic={**profile, "forward_s": LAYERS * LAYER_S},
        **settings,
    ) as it:
        ids = random_ids(random.Random(1), CACHED + NEW)
        await it.generate(ids, 1)
        await it.idle()
        traces.clear()
        run = await it.generate(ids, 1, path)
        assert run.stats.hit_tokens == CACHED
        await it.idle()
    (trace,) = traces
    return trace


def moments(trace: ForwardTrace, event: str) -> list[int]:
    """When each layer's `event` was, as a position in the trace; each layer has had it once."""
    at = {layer: n for n, (name, layer, _) in enumerate(trace.marks) if name == event}
    assert sorted(at) == list(range(LAYERS))
    assert sum(name == event for name, _, _ in trace.marks) == LAYERS
    return [at[layer] for layer in range(LAYERS)]


@pytest.mark.parametrize("path", list(BUSIEST))
async def test_layerwise_nine_layers_of_ten_are_computed_while_others_move(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: ReadPath
) -> None:
    trace = await forward(nats_server, tmp_path, monkeypatch, path)
    assert trace.overlapped_layers() >= 0.9 * LAYERS
    arrive, arrived, compute, computed, leave, left = (
        moments(trace, event)
        for event in ("arrive", "arrived", "compute", "computed", "leave", "left")
    )
    for layer in range(LAYERS):
        assert arrive[layer] < arrived[layer] < compute[layer] < computed[layer]
        assert computed[layer] < leave[layer] < left[layer]
    assert all(done < begun for done, begun in zip(computed, compute[1:], strict=False))
    assert all(a < b for a, b in pairwise(arrive))
    # A place in the ring of three is used again once its layer has left.
    assert all(gone < next_in for gone, next_in in zip(left, arrive[3:], strict=False))


@pytest.mark.parametrize("path", list(BUSIEST))
async def test_without_layerwise_all_arrives_first_and_leaves_last(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: ReadPath
) -> None:
    trace = await forward(nats_server, tmp_path, monkeypatch, path, layerwise=False)
    assert trace.overlapped_layers() == 0
    assert max(moments(trace, "arrived")) < min(moments(trace, "compute"))
    assert max(moments(trace, "computed")) < min(moments(trace, "leave"))
