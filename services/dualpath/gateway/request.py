"""The request that a gateway owns, through all attempts at it. Pure: messages in, messages out.

The client's tokens are what `take` returns, in order and once, whichever attempts they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from dualpath.blocks import BlockKeys, pack_keys
from dualpath.blocks.keys import pack_tokens
from dualpath.wire.control import (
    AttemptOver,
    Ok,
    PromptScored,
    Refused,
    Submit,
    TokenAck,
    TokenEvent,
    TokenPage,
    TokenRequest,
)
from dualpath.wire.types import Attempt, AttemptStats, FinishReason, Sampled, Sampling, TokenScores

PAGE_TOKENS = 64 * 1024
"""Ids per page: 256 KiB on the wire."""

PREEMPTED = "preempted"


@dataclass
class Request:
    """One client's request. `keys` is of the prompt, and owned from here on.

    `submit_due` is set while the scheduler must be told of an attempt: at the start, and after each loss.
    """

    request_id: str
    prompt: Sequence[int]
    sampling: Sampling
    keys: BlockKeys
    max_attempts: int
    priority: int = 0
    tenant: str = ""
    """The name of its API key."""
    weight: float = 1.0
    number: int = 0
    generated: list[Sampled] = field(default_factory=list)
    finish: FinishReason | None = None
    stats: AttemptStats = field(default_factory=AttemptStats)
    lost: AttemptOver | None = None
    """Why the request was given up."""
    submit_due: bool = True
    failures: int = 0
    stopped: bool = False
    """The client has all that it wants (`stop_after`), and the cluster has not been heard to know."""
    scores: list[TokenScores] = field(default_factory=list)
    """Of the prompt's tokens but the first, end to end; all are here before the first token is."""
    _resting: bool = False
    _base: int = 0
    """How many generated tokens the present attempt's prompt holds."""
    _received: int = 0
    """Tokens that the cluster need not send again: after `stop_after` more than `generated`."""
    _taken: int = 0
    first_stats: AttemptStats | None = None
    """Of the first attempt that came to its first token: what later ones read, earlier ones have computed."""

    # ── attempts ───────────────────────────────────────────────────────────────────────────────────
    @property
    def attempt(self) -> Attempt:
        return Attempt(self.request_id, self.number)

    @property
    def over(self) -> bool:
        """Nothing of it runs in the cluster any more."""
        return (self.finish is not None or self.lost is not None) and not self.stopped

    @property
    def sequence_tokens(self) -> int:
        """Tokens that the present attempt prefills."""
        return len(self.prompt) + self._base

    def rest_s(self, node_lost_s: float) -> float:
        """How long to wait before the next attempt. Until a dead node has been silent for `node_lost_s` it gets
        work, the more as it finishes none: attempts must not be used up by then."""
        return node_lost_s * min(2.0 ** (self.failures - 4), 1.0) if self._resting else 0.0

    def begin_attempt(self) -> None:
        """Go on to the next attempt: prompt, and everything generated so far."""
        self.keys.extend(token.token_id for token in self.generated[self._base :])
        self._base = self._received = len(self.generated)
        if not self.generated:
            self.scores.clear()
        self.number += 1
        self.submit_due = self._resting = False

    @property
    def scoring(self) -> bool:
        """Whether the present attempt gives log-probabilities of the prompt. With the first token all are there."""
        return self.sampling.prompt_logprobs and not self._base

    def submission(self, gateway_id: str, hit_blocks: int, deadline_s: float) -> Submit:
        """The present attempt as the scheduler is told of it."""
        sampling = self.sampling
        if sampling.prompt_logprobs and not self.scoring:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=False)
        return Submit(
            attempt=self.attempt,
            gateway_id=gateway_id,
            prompt_tokens=self.sequence_tokens,
            generated=self._base,
            root=self.keys.root,
            keys=pack_keys(self.keys.keys),
            hit_blocks_estimate=hit_blocks,
            sampling=sampling,
            deadline_s=deadline_s,
            priority=self.priority,
            tenant=self.tenant,
            weight=self.weight,
        )

    def forgotten(self) -> None:
        """The scheduler has lost its memory: what it was told must be said again."""
        if not self.over:
            self._go_on()

    def lose(self, over: AttemptOver) -> bool:
        """An attempt is over. Returns whether that changed anything: word of an older one does not."""
        if over.attempt != self.attempt or self.over or self.submit_due:
            return False
        failed = over.code != PREEMPTED
        self.failures += failed
        self._resting = failed and self.failures > 1
        if self._end_named_by_tokens() is None and (
            not over.retry or self.failures >= self.max_attempts
        ):
            self.lost = over
        else:
            self._go_on()
        return True

    def _go_on(self) -> None:
        """Another attempt, unless the tokens themselves say that nothing is left to generate."""
        self._end(self._end_named_by_tokens())

    def _end(self, finish: FinishReason | None) -> None:
        """None: it goes on."""
        self.finish = finish
        self.submit_due = finish is None
        self.stopped = False

    def _end_named_by_tokens(self) -> FinishReason | None:
        """The reason that the lost last event would have named."""
        if self.stopped:
            return "stop"
        count, sampling = len(self.generated), self.sampling
        if count > sampling.min_tokens and self.generated[-1].token_id in sampling.stop_ids:
            return "stop"
        return "length" if count >= sampling.max_tokens else None

    # ── messages of nodes ──────────────────────────────────────────────────────────────────────────
    def page(self, asked: TokenRequest) -> TokenPage | Refused:
        """Ids [start, stop) of the present attempt's sequence, PAGE_TOKENS at most."""
        if asked.attempt != self.attempt:
            return Refused(f"{asked.attempt} is over; the present one is {self.attempt}")
        if not 0 <= asked.start < asked.stop <= self.sequence_tokens:
            return Refused(
                f"no tokens [{asked.start}, {asked.stop}) in a sequence of {self.sequence_tokens}",
                code="malformed",
            )
        start, stop = asked.start, min(asked.stop, asked.start + PAGE_TOKENS)
        ids = list(self.prompt[start:stop])
        skip = len(self.prompt)
        if stop > skip:
            ids += [t.token_id for t in self.generated[max(start - skip, 0) : stop - skip]]
        return TokenPage(start, pack_tokens(ids))

    def take_scores(self, message: PromptScored) -> Ok | Refused:
        """Repeated messages are taken once."""
        if message.attempt != self.attempt or self.over:
            return Refused(f"{message.attempt} is over; the present one is {self.attempt}")
        if not message.scores.sound:
            return Refused(
                "log-probabilities of no tokens, or not as many as there are", "malformed"
            )
        here = 1 + sum(map(len, self.scores))
        if message.start > here or message.start + len(message.scores) > len(self.prompt):
            return Refused(
                f"no log-probabilities from {message.start} on, with {here} here", "malformed"
            )
        if message.start == here:
            self.scores.append(message.scores)
        return Ok()

    def receive(self, event: TokenEvent) -> TokenAck:
        """Take what is new of an event. What came before is dropped; after a gap nothing is taken."""
        if event.attempt != self.attempt or self.over:
            return done_with(event)
        if event.index <= self._received:
            fresh = event.tokens[self._received - event.index :]
            self._received += len(fresh)
            if not self.stopped:
                self.generated.extend(fresh)
            self._note(event.stats)
            if event.finish is not None:
                self._end("stop" if self.stopped else event.finish)
        return self.ack()

    def _note(self, stats: AttemptStats | None) -> None:
        if stats is not None:
            self.stats = stats
            self.first_stats = self.first_stats or stats

    def ack(self) -> TokenAck:
        """What the present attempt's node should know."""
        done = self.finish is not None and not self.stopped
        return TokenAck(self.attempt, self._received, finished=done, stop=self.stopped)

    # ── the client's side ──────────────────────────────────────────────────────────────────────────
    def take(self) -> list[Sampled]:
        """Tokens that have arrived since the last call."""
        fresh = self.generated[self._taken :]
        self._taken += len(fresh)
        return fresh

    def stop_after(self, count: int) -> None:
        """The client wants the first `count` generated tokens, and no others: its stop string ended there. The
        request ends with word of the cluster, or with `stop_waiting`."""
        del self.generated[count:]
        self._taken = count
        self.stopped = not self.over and not self.submit_due
        self.finish = None if self.stopped else "stop"
        self.submit_due = False

    def stop_waiting(self) -> None:
        """Tell the client now. The cluster does not know, or has not said so: it must be told that this is over."""
        self.finish = "stop"

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose KV was read. Those that a later attempt reads, because an earlier one has computed
        them, do not count."""
        return min(self.first_stats.hit_tokens, len(self.prompt)) if self.first_stats else 0


def done_with(event: TokenEvent) -> TokenAck:
    """The answer for an attempt that is nobody's any more: its sender may forget it."""
    return TokenAck(event.attempt, event.index + len(event.tokens), finished=True)
