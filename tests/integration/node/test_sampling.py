"""What the sampler must know reaches both nodes; a client that has enough ends its request at the decode node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.support.nats import NatsServer
from tests.support.rig import prompt, rig, right
from tests.support.wait import until

from dualpath.model.history import History
from dualpath.model.synthetic_kv import next_token
from dualpath.wire import control
from dualpath.wire.types import Sampled, Sampling


@pytest.mark.parametrize("generated", [0, 70])
@pytest.mark.parametrize("penalty", ["repetition_penalty", "frequency_penalty"])
async def test_both_nodes_know_the_ids_before_each_token(
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    penalty: str,
    generated: int,
) -> None:
    """The prompt's ids are read from storage as KV only: the gateway has them. Of a later attempt's sequence the
    last `generated` were generated before."""
    seen: list[tuple[list[int], dict[int, int]]] = []

    def watch(history: History | None) -> None:
        assert history is not None
        ids, counts = history.generated_ids()
        seen.append(
            (history.prompt_ids().tolist(), dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        )

    from dualpath.model.synthetic import SyntheticBackend

    begin, decode = SyntheticBackend.begin_prefill, SyntheticBackend.decode

    async def begin_prefill(self, rows):  # type: ignore[no-untyped-def]
        for row in rows:
            if row.sample is not None:
                watch(row.history)
        return await begin(self, rows)

    async def decode_rows(self, rows):  # type: ignore[no-untyped-def]
        for row in rows:
            watch(row.history)
        return await decode(self, rows)

    async with rig(nats_server, tmp_path) as it:
        ids = [*prompt(300, 1), 7, 7, 8, *prompt(generated, 2)]
        await it.generate(ids, 2)
        monkeypatch.setattr(SyntheticBackend, "begin_prefill", begin_prefill)
        monkeypatch.setattr(SyntheticBackend, "decode", decode_rows)
        sampling = Sampling(max_tokens=generated + 4, seed=0)
        sampling = msgspec.structs.replace(sampling, **{penalty: 1.5})
        run = await it.begin(ids, sampling, generated=generated)
        await it.pair(run, "split", 4, 2)
        await asyncio.wait_for(run.over.wait(), 60)
    cut = len(ids) - generated
    whole = penalty == "repetition_penalty"
    for number, (prompt_ids, counts) in enumerate(seen):
        assert prompt_ids == (sorted(set(ids[:cut])) if whole else [])
        known = ids[cut:] + run.tokens[:number]
        assert counts == {token: known.count(token) for token in known}
    assert len(seen) == len(run.tokens) == 4


async def test_a_client_that_has_enough_ends_its_request_as_the_model_would(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Within two steps, with its figures, and with its blocks stored."""
    async with rig(nats_server, tmp_path, synthetic={"decode_step_s": 0.02}) as it:
        ids = prompt(200, 1)
        run = await it.begin(ids, Sampling(max_tokens=1000, seed=0))
        await it.pair(run, "none", 0, 0)
        await until(lambda: len(run.tokens) >= 5, what="some tokens")
        steps = it.decode.counters()["steps"]
        ack = control.TokenAck(run.attempt, len(run.tokens), stop=True)
        await it.decode.on_control(control.TokenAcks((ack,)))
        await asyncio.wait_for(run.over.wait(), 60)
        assert (run.finish, run.lost) == ("stop", None)
        assert it.decode.counters()["steps"] <= steps + 2
        assert run.tokens == right(it, run, len(run.tokens))
        assert run.stats.decode_node == "d0"
        # Told in a message of its own, beside the last token's.
        await until(lambda: run.phases[-1] == "done", what="the phase")
        await it.idle()
        again = await it.generate(ids + run.tokens, 2, "prefill")
        assert again.stats.hit_tokens == it.geometry.max_hit_blocks(len(again.ids)) * 64


async def test_figures_come_with_the_first_token(nats_server: NatsServer, tmp_path: Path) -> None:
    async with rig(nats_server, tmp_path) as it:
        events: list[control.TokenEvent] = []
        inner = it._on_event

        async def on_event(node_id: str, event: control.TokenEvent) -> None:
            events.append(event)
            await inner(node_id, event)

        it._on_event = on_event  # type: ignore[method-assign]
        ids = prompt(200, 1)
        await it.generate(ids, 3)
        events.clear()
        run = await it.generate(ids, 3, "prefill")
        assert events[0].index == 0
        assert events[0].stats is not None
        assert events[0].stats.hit_tokens == run.stats.hit_tokens == 192


def test_the_synthetic_engine_never_says_what_is_forbidden() -> None:
    digests, size = [1, 2, 3], 300
    free = Sampling(max_tokens=1, seed=0)
    first = next_token(digests, 0, free, size).token_id
    banned = tuple(((first + k) % size, -100.0) for k in range(5))
    barred = Sampling(max_tokens=1, seed=0, logit_bias=banned)
    assert next_token(digests, 0, barred, size) == Sampled((first + 5) % size)
