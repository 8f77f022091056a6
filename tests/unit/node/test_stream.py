from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.node.stream import BATCH_TOKENS, EVENT_TOKENS, TokenStreams, batches
from dualpath.wire.control import TokenAck, TokenEvent
from dualpath.wire.types import Attempt, Sampled

ATTEMPT = Attempt("r", 1)


def test_fresh_tokens_go_out_once_and_unacknowledged_ones_again() -> None:
    streams = TokenStreams(resend_s=1.0, keep_s=60.0)
    stream = streams.open(ATTEMPT, "g", 5, 0.0)
    stream.tokens += [Sampled(1), Sampled(2)]
    (event,) = streams.fresh(0.0)["g"]
    assert (event.index, [t.token_id for t in event.tokens]) == (5, [1, 2])
    assert streams.fresh(0.1) == {}
    assert streams.stale(0.5) == {}
    (again,) = streams.stale(1.5)["g"]
    assert again == event
    streams.acknowledge(TokenAck(ATTEMPT, 6), 1.6)
    (rest,) = streams.stale(3.0)["g"]
    assert (rest.index, [t.token_id for t in rest.tokens]) == (6, [2])


def test_a_finish_is_resent_until_it_is_acknowledged() -> None:
    streams = TokenStreams(resend_s=1.0, keep_s=60.0)
    stream = streams.open(ATTEMPT, "g", 0, 0.0)
    stream.tokens.append(Sampled(1))
    streams.fresh(0.0)
    streams.acknowledge(TokenAck(ATTEMPT, 1), 0.1)
    stream.finish = "length"
    (event,) = streams.fresh(0.2)["g"]
    assert event.finish == "length"
    assert event.tokens == ()
    assert [e.finish for e in streams.stale(2.0)["g"]] == ["length"]
    streams.acknowledge(TokenAck(ATTEMPT, 1, finished=True), 2.1)
    assert len(streams) == 0


def test_a_finished_stream_that_nobody_takes_is_given_up() -> None:
    streams = TokenStreams(resend_s=1.0, keep_s=60.0)
    stream = streams.open(ATTEMPT, "g", 0, 0.0)
    stream.finish = "stop"
    streams.fresh(0.0)
    now = 0.0
    while now < 59.0:
        now += 2.0
        assert streams.stale(now)
    assert streams.stale(61.0) == {}
    assert len(streams) == 0


@given(
    total=st.integers(0, 3 * EVENT_TOKENS),
    losses=st.lists(st.booleans(), max_size=12),
    base=st.integers(0, 5),
)
def test_whatever_is_lost_every_token_arrives_once_and_in_order(
    total: int, losses: list[bool], base: int
) -> None:
    streams = TokenStreams(resend_s=1.0, keep_s=1e9)
    stream = streams.open(ATTEMPT, "g", base, 0.0)
    stream.tokens += [Sampled(i) for i in range(total)]
    stream.finish = "stop"
    got: list[int] = []
    finished, now = False, 0.0
    lost = iter(losses)
    while len(streams):
        now += 2.0
        for event in [*streams.fresh(now).get("g", []), *streams.stale(now + 1.5).get("g", [])]:
            if next(lost, False) or event.index > base + len(got):
                continue
            got += [t.token_id for t in event.tokens[base + len(got) - event.index :]]
            finished = finished or event.finish is not None
            streams.acknowledge(TokenAck(ATTEMPT, base + len(got), finished), now)
        assert now < 1000
    assert got == list(range(total))
    assert finished


def test_messages_are_bounded() -> None:
    events = [TokenEvent(ATTEMPT, 0, tuple(Sampled(i) for i in range(200)))] * 20
    cut = list(batches(events))
    assert [event for batch in cut for event in batch] == events
    assert all(sum(len(event.tokens) for event in batch) <= BATCH_TOKENS for batch in cut)
