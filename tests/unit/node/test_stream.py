from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dualpath.node.stream import (
    BATCH_TOKENS,
    EVENT_TOKENS,
    TokenStream,
    TokenStreams,
    batches,
)
from dualpath.wire.control import TokenAck, TokenEvent
from dualpath.wire.types import Attempt, Sampled

ATTEMPT = Attempt("r", 1)


def streams_with_one(
    *, base: int = 0, expires_s: float = 600.0
) -> tuple[TokenStreams, TokenStream]:
    streams = TokenStreams(resend_s=1.0)
    return streams, streams.open(ATTEMPT, "g", base, now_s=0.0, expires_s=expires_s)


def ids(events: Sequence[TokenEvent]) -> list[int]:
    return [token.token_id for event in events for token in event.tokens]


def test_fresh_tokens_go_out_once_and_unacknowledged_ones_again() -> None:
    streams, stream = streams_with_one(base=5)
    stream.tokens += [Sampled(1), Sampled(2)]
    (event,) = streams.fresh(0.0)["g"]
    assert (event.index, ids([event])) == (5, [1, 2])
    assert streams.fresh(0.1) == {}
    assert streams.stale(0.5) == {}
    (again,) = streams.stale(1.5)["g"]
    assert again == event
    streams.acknowledge(TokenAck(ATTEMPT, 6), 1.6)
    (rest,) = streams.stale(3.0)["g"]
    assert (rest.index, ids([rest])) == (6, [2])


def test_what_was_lost_is_sent_again_in_time_though_later_tokens_keep_coming() -> None:
    streams, stream = streams_with_one()
    stream.tokens.append(Sampled(0))
    streams.fresh(0.0)  # lost
    now, again = 0.0, None
    while again is None:
        now += 0.05
        assert now < 1.2
        stream.tokens.append(Sampled(len(stream.tokens)))
        assert ids(streams.fresh(now)["g"]) == [stream.tokens[-1].token_id]
        # After the gap the gateway takes nothing, and says so each time.
        streams.acknowledge(TokenAck(ATTEMPT, 0), now)
        again = streams.stale(now).get("g")
    assert (again[0].index, ids(again)) == (0, list(range(len(stream.tokens))))
    stream.tokens.append(Sampled(99))
    assert streams.fresh(now) == {}, "nothing else until that is taken"
    streams.acknowledge(TokenAck(ATTEMPT, len(stream.tokens) - 1), now)
    assert ids(streams.fresh(now)["g"]) == [99]


def test_once_the_first_piece_of_a_backlog_is_taken_all_the_rest_goes_out() -> None:
    streams, stream = streams_with_one()
    stream.tokens += [Sampled(i) for i in range(4 * EVENT_TOKENS)]
    stream.finish = "stop"
    assert len(streams.fresh(0.0)["g"]) == 4  # all lost
    (first,) = streams.stale(1.0)["g"]
    assert ids([first]) == list(range(EVENT_TOKENS))
    assert streams.fresh(1.1) == streams.stale(1.1) == {}
    streams.acknowledge(TokenAck(ATTEMPT, EVENT_TOKENS), 1.2)
    rest = streams.fresh(1.2)["g"]
    assert ids(rest) == list(range(EVENT_TOKENS, 4 * EVENT_TOKENS))
    assert rest[-1].finish == "stop"


def test_a_gateway_that_has_more_than_was_known_is_not_sent_it_again() -> None:
    streams, stream = streams_with_one()
    stream.tokens += [Sampled(i) for i in range(3 * EVENT_TOKENS)]
    streams.fresh(0.0)
    streams.stale(1.0)
    streams.acknowledge(TokenAck(ATTEMPT, 3 * EVENT_TOKENS), 1.1)
    assert streams.fresh(1.1) == streams.stale(5.0) == {}


def test_a_finish_is_resent_until_it_is_acknowledged() -> None:
    streams, stream = streams_with_one()
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


def test_a_finished_stream_is_kept_until_the_requests_deadline() -> None:
    streams, stream = streams_with_one(expires_s=60.0)
    stream.finish = "stop"
    streams.fresh(0.0)
    now = 0.0
    while now < 58.0:
        now += 2.0
        assert streams.stale(now)
    assert streams.stale(60.0) == {}
    assert len(streams) == 0


def test_a_finished_stream_of_a_gateway_that_is_gone_is_given_up() -> None:
    streams = TokenStreams(resend_s=1.0, gone_s=10.0)
    stream = streams.open(ATTEMPT, "g", 0, now_s=0.0, expires_s=600.0)
    assert streams.stale(50.0) == {}
    stream.finish = "stop"
    # Silence counts from the end on, and while the bus is there; a sign of life is no silence.
    streams.stale(55.0)
    streams.fresh(60.0)
    assert streams.stale(69.0)
    streams.acknowledge(TokenAck(ATTEMPT, 0), 69.5)
    assert streams.stale(78.0, connected_s=0.0)
    assert streams.stale(88.0, connected_s=87.0)
    assert len(streams) == 1
    assert streams.stale(97.0, connected_s=87.0) == {}
    assert len(streams) == 0


def test_a_stream_that_is_still_fed_outlives_the_deadline() -> None:
    """Its request's task ends it."""
    streams, _ = streams_with_one(expires_s=60.0)
    streams.stale(61.0)
    assert len(streams) == 1


@given(
    total=st.integers(0, 3 * EVENT_TOKENS),
    at_once=st.integers(1, EVENT_TOKENS),
    losses=st.lists(st.booleans(), max_size=40),
    base=st.integers(0, 5),
)
def test_whatever_is_lost_every_token_arrives_once_and_in_order(
    total: int, at_once: int, losses: list[bool], base: int
) -> None:
    streams, stream = streams_with_one(base=base, expires_s=1e9)
    got: list[int] = []
    finished, now = False, 0.0
    lost = iter(losses)
    while len(streams):
        now += 0.25
        stream.tokens += [Sampled(i) for i in range(len(stream.tokens), total)[:at_once]]
        if len(stream.tokens) == total:
            stream.finish = "stop"
        for event in [*streams.fresh(now).get("g", []), *streams.stale(now).get("g", [])]:
            if next(lost, False):
                continue
            if event.index <= base + len(got):
                got += ids([event])[base + len(got) - event.index :]
                finished = finished or event.finish is not None
            if not next(lost, False):
                streams.acknowledge(TokenAck(ATTEMPT, base + len(got), finished), now)
        assert now < 1000
    assert got == list(range(total))
    assert finished


def test_messages_are_bounded() -> None:
    events = [TokenEvent(ATTEMPT, 0, tuple(Sampled(i) for i in range(200)))] * 20
    cut = list(batches(events))
    assert [event for batch in cut for event in batch] == events
    assert all(sum(len(event.tokens) for event in batch) <= BATCH_TOKENS for batch in cut)
