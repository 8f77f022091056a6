"""The token stream of a request as its decode node owns it: numbered, kept until acknowledged, resent.

Pure but for the time that callers pass in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from dualpath.wire.control import TokenAck, TokenEvent
from dualpath.wire.types import Attempt, AttemptStats, FinishReason, Sampled

EVENT_TOKENS = 256
"""Tokens of one event at most; a long backlog goes out piece by piece."""
BATCH_TOKENS, BATCH_EVENTS = 1024, 256
"""Bounds of one message: with 20 log-probabilities a token it stays under 1 MiB."""


@dataclass
class TokenStream:
    """Tokens of one attempt, from the request's generated token number `base` on."""

    attempt: Attempt
    gateway_id: str
    base: int
    expires_s: float
    """The request's deadline: afterwards nobody waits for its tokens."""
    tokens: list[Sampled] = field(default_factory=list)
    finish: FinishReason | None = None
    stats: AttemptStats | None = None
    acked: int = 0
    """How many of `tokens` the gateway has."""
    sent: int = 0
    """How many of `tokens` have been sent; back to `acked` where something was lost on the way."""
    finish_sent: bool = False
    over: bool = False
    """The gateway has everything: nothing needs to be kept."""
    repeating: bool = False
    """Something was lost: until the gateway takes the first piece of it, nothing else is sent."""
    heard_s: float = 0.0
    """When its gateway last gave a sign of life about it."""
    ended_s: float = inf
    """When its finish was first sent."""
    moved_s: float = 0.0
    """Since when what is unacknowledged has been so: it was sent, or the gateway took what came before it."""

    @property
    def unacknowledged(self) -> bool:
        return self.acked < self.sent or (self.finish_sent and not self.over)

    def fresh(self, now_s: float) -> TokenEvent | None:
        """What has not been sent yet, as one event; after a long backlog more remains."""
        all_sent = self.sent == len(self.tokens) and (self.finish is None or self.finish_sent)
        return None if all_sent or self.repeating else self._next_event(now_s)

    def stale(self, now_s: float, resend_s: float) -> TokenEvent | None:
        """The first piece of what is unacknowledged, where the gateway has taken nothing for `resend_s`,
        whatever was sent meanwhile. Once it is taken, all that follows is fresh again."""
        if not self.unacknowledged or now_s - self.moved_s < resend_s:
            return None
        self.sent, self.finish_sent, self.repeating = self.acked, False, True
        return self._next_event(now_s)

    def acknowledge(self, ack: TokenAck, now_s: float) -> None:
        """Take a gateway's word for what it has; numbers out of range count for nothing."""
        self.heard_s = now_s
        taken = min(ack.next_index - self.base, len(self.tokens))
        if taken > self.acked or ack.finished:
            self.acked = max(self.acked, taken)
            self.sent = max(self.sent, self.acked)
            self.moved_s, self.repeating = now_s, False
        self.over = self.over or ack.finished

    def _next_event(self, now_s: float) -> TokenEvent:
        if not self.unacknowledged:
            self.moved_s = now_s
        start = self.sent
        self.sent = stop = min(len(self.tokens), start + EVENT_TOKENS)
        ends = self.finish is not None and stop == len(self.tokens)
        self.finish_sent = self.finish_sent or ends
        if ends:
            self.ended_s = min(self.ended_s, now_s)
        return TokenEvent(
            self.attempt,
            self.base + start,
            tuple(self.tokens[start:stop]),
            self.finish if ends else None,
            self.stats if ends or start == 0 else None,
        )


def batches(events: Sequence[TokenEvent]) -> Iterator[tuple[TokenEvent, ...]]:
    """Cut a list of events into messages of bounded size."""
    batch: list[TokenEvent] = []
    tokens = 0
    for event in events:
        if batch and (tokens + len(event.tokens) > BATCH_TOKENS or len(batch) >= BATCH_EVENTS):
            yield tuple(batch)
            batch, tokens = [], 0
        batch.append(event)
        tokens += len(event.tokens)
    if batch:
        yield tuple(batch)


class TokenStreams:
    """All streams of a decode node, and what of them is to be sent to which gateway."""

    def __init__(self, *, resend_s: float, gone_s: float = inf) -> None:
        """A gateway that says nothing about a finished stream for `gone_s`, though the bus is there, is gone."""
        self._resend_s, self._gone_s = resend_s, gone_s
        self._streams: dict[Attempt, TokenStream] = {}

    def open(
        self, attempt: Attempt, gateway_id: str, base: int, *, now_s: float, expires_s: float
    ) -> TokenStream:
        stream = TokenStream(attempt, gateway_id, base, expires_s, heard_s=now_s, moved_s=now_s)
        self._streams[attempt] = stream
        return stream

    def drop(self, attempt: Attempt) -> None:
        """The attempt is over and its tokens are nobody's any more."""
        self._streams.pop(attempt, None)

    def acknowledge(self, ack: TokenAck, now_s: float) -> None:
        stream = self._streams.get(ack.attempt)
        if stream is None:
            return
        stream.acknowledge(ack, now_s)
        if stream.over:
            self.drop(ack.attempt)

    def fresh(self, now_s: float) -> dict[str, list[TokenEvent]]:
        """Unsent events by gateway."""
        return self._collect(lambda stream: stream.fresh(now_s))

    def stale(self, now_s: float, connected_s: float = 0.0) -> dict[str, list[TokenEvent]]:
        """Events to be sent again, by gateway; finished streams that nobody took in time are given up, and those of
        gateways that are gone. The bus is there since `connected_s`."""
        for attempt, stream in list(self._streams.items()):
            silent_s = now_s - max(stream.heard_s, stream.ended_s, connected_s)
            if stream.finish is not None and (
                now_s >= stream.expires_s or silent_s >= self._gone_s
            ):
                self.drop(attempt)
        return self._collect(lambda stream: stream.stale(now_s, self._resend_s))

    def _collect(
        self, pick: Callable[[TokenStream], TokenEvent | None]
    ) -> dict[str, list[TokenEvent]]:
        events: dict[str, list[TokenEvent]] = {}
        for stream in self._streams.values():
            while (event := pick(stream)) is not None:
                events.setdefault(stream.gateway_id, []).append(event)
        return events

    def __len__(self) -> int:
        return len(self._streams)
