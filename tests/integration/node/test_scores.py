"""Log-probabilities of a prompt, from the prefill node to the gateway."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from tests.support.nats import NatsServer
from tests.support.rig import prompt, rig, right

from dualpath.prefill import scores
from dualpath.prefill.scores import pages
from dualpath.wire import control
from dualpath.wire.types import Sampling, TokenScores

SCORED = Sampling(max_tokens=3, seed=0, top_logprobs=0, prompt_logprobs=True)


@pytest.mark.parametrize("layerwise", [True, False])
async def test_every_chunk_is_scored_and_nothing_that_is_stored_is_taken(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layerwise: bool
) -> None:
    """Though the read is assigned, and has been made: as after an older estimate."""
    monkeypatch.setattr(scores, "PAGE_BYTES", 4 * 50)
    async with rig(nats_server, tmp_path, chunk_tokens=128, layerwise=layerwise) as it:
        ids = prompt(300, 1)
        await it.generate(ids, 3)
        await it.idle()
        run = await it.generate(ids, 3, "split", sampling=SCORED)
        assert run.tokens == right(it, run, 3)
        assert run.stats.hit_tokens == 0
        lengths = [len(message.scores) for message in it.scored]
        assert lengths == [50, 50, 28, 50, 50, 28, 43]
        assert [m.start for m in it.scored] == list(accumulate(lengths[:-1], initial=1))
        await it.idle()


@pytest.mark.parametrize("chunk_tokens", [64, 4096])
async def test_a_gateway_that_takes_no_scores_loses_the_attempt(
    nats_server: NatsServer, tmp_path: Path, chunk_tokens: int
) -> None:
    async with rig(nats_server, tmp_path, chunk_tokens=chunk_tokens) as it:
        it.scores_refusal = control.Refused("not at this gateway")
        run = await it.generate(prompt(150, 1), 3, sampling=SCORED)
        assert run.lost is not None
        assert (run.lost.node_id, run.lost.code, run.lost.retry) == ("p0", "transfer", True)
        assert "not at this gateway" in run.lost.reason
        assert (len(it.scored), run.tokens) == (1, [])
        await it.tell("d0", control.Abort(run.attempt, "lost"))
        await it.idle()


@pytest.mark.parametrize("top", [0, 3])
def test_pages_are_bounded_and_end_to_end_the_whole(
    monkeypatch: pytest.MonkeyPatch, top: int
) -> None:
    monkeypatch.setattr(scores, "PAGE_BYTES", 100)
    columns: Any = (bytes(range(4 * 10)), bytes(range(40 * top)), bytes(range(100, 100 + 40 * top)))
    found = list(pages(TokenScores(top, *columns)))
    assert all(len(p.chosen + p.ids + p.best) <= 100 for p in found)
    for name, column in zip(("chosen", "ids", "best"), columns, strict=True):
        assert b"".join(getattr(page, name) for page in found) == column
