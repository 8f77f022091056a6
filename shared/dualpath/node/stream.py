"""The token stream of a request as its decode node owns it: numbered, kept until acknowledged, resent.

Pure but for the time that callers pass in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

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
    tokens: list[Sampled] = field(default_factory=list)
    finish: FinishReason | None = None
    stats: AttemptStats | None = None
    acked: int = 0
    """How many of `tokens` the gateway has."""
    sent: int = 0
    """How many of `tokens` have been sent at least once."""
    finish_sent: bool = False
    over: bool = False
    """The gateway has everything: nothing needs to be kept."""
    moved_s: float = 0.0
    """When something was last sent or acknowledged."""
    heard_s: float = 0.0
    """When the gateway was last heard (or the stream opened)."""

    def fresh(self, now_s: float) -> TokenEvent | None:
        """What has not been sent yet, as one event."""
        if self.sent == len(self.tokens) and (self.finish is None or self.finish_sent):
            return None
        return self._event(self.sent, now_s)

    def stale(self, now_s: float, resend_s: float) -> TokenEvent | None:
        """Everything unacknowledged, if nothing has moved for `resend_s`."""
        unacked = self.acked < self.sent or (self.finish_sent and not self.over)
        if not unacked or now_s - self.moved_s < resend_s:
            return None
        return self._event(self.acked, now_s)

    def acknowledge(self, ack: TokenAck, now_s: float) -> None:
        """Take a gateway's word for what it has; numbers out of range count for nothing."""
        self.acked = max(self.acked, min(ack.next_index - self.base, len(self.tokens)))
        self.moved_s = self.heard_s = now_s
        self.over = self.over or ack.finished

    def _event(self, start: int, now_s: float) -> TokenEvent:
        stop = min(len(self.tokens), start + EVENT_TOKENS)
        ends = self.finish is not None and stop == len(self.tokens)
        self.sent = max(self.sent, stop)
        self.finish_sent = self.finish_sent or ends
        self.moved_s = now_s
        return TokenEvent(
            self.attempt,
            self.base + start,
            tuple(self.tokens[start:stop]),
            self.finish if ends else None,
            self.stats if ends else None,
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

    def __init__(self, *, resend_s: float, keep_s: float) -> None:
        self._resend_s = resend_s
        self._keep_s = keep_s
        self._streams: dict[Attempt, TokenStream] = {}

    def open(self, attempt: Attempt, gateway_id: str, base: int, now_s: float) -> TokenStream:
        stream = TokenStream(attempt, gateway_id, base, moved_s=now_s, heard_s=now_s)
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

    def stale(self, now_s: float) -> dict[str, list[TokenEvent]]:
        """Events to be sent again, by gateway; streams that nobody took for `keep_s` are given up."""
        for attempt, stream in list(self._streams.items()):
            if stream.finish is not None and now_s - stream.heard_s > self._keep_s:
                self.drop(attempt)
        return self._collect(lambda stream: stream.stale(now_s, self._resend_s))

    def _collect(
        self, pick: Callable[[TokenStream], TokenEvent | None]
    ) -> dict[str, list[TokenEvent]]:
        events: dict[str, list[TokenEvent]] = {}
        for stream in self._streams.values():
            event = pick(stream)
            if event is not None:
                events.setdefault(stream.gateway_id, []).append(event)
        return events

    def __len__(self) -> int:
        return len(self._streams)
