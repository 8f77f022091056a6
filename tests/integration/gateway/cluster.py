"""A scheduler and a node in one, scripted by tests, that speak to a gateway over a real bus."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from dualpath.blocks.keys import unpack_tokens
from dualpath.bus import Bus
from dualpath.wire import control
from dualpath.wire.codec import Message
from dualpath.wire.types import AttemptStats, FinishReason, Sampled, TokenScores

NODE = "decode-0"
STATS = AttemptStats(
    prefill_node="prefill-0",
    decode_node=NODE,
    read_path="split",
    hit_tokens=64,
    prefill_bytes_read=1000,
    decode_bytes_read=2000,
    timings_s={"queued": 0.25, "decode": 0.5},
)

Script = Callable[["FakeCluster", control.Submit], Coroutine[Any, Any, None]]


@dataclass
class FakeCluster:
    """Answers as a scheduler; runs `script` for every attempt that is submitted, once."""

    bus: Bus
    script: Script
    incarnation: str = "first"
    refusal: control.Refused | None = None
    registration_refusal: str | None = None
    silent: bool = False
    refused: int = 0
    submits: list[control.Submit] = field(default_factory=list)
    cancelled: list[control.CancelRequest] = field(default_factory=list)
    acks: list[control.TokenAck] = field(default_factory=list)
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        await self.bus.serve(control.SCHEDULER, control.to_scheduler, self._on_scheduler)
        await self.bus.serve(control.node_subject(NODE), control.to_node, self._on_node)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.bus.close()

    async def _on_scheduler(self, message: Message) -> Message | None:
        if self.silent:
            return None
        match message:
            case control.RegisterGateway():
                self.registered.set()
                if self.registration_refusal is not None:
                    return control.Refused(self.registration_refusal, code="incompatible")
                return control.Registered(self.incarnation)
            case control.Submit():
                if self.refusal is not None:
                    self.refused += 1
                    return self.refusal
                if message.attempt not in [known.attempt for known in self.submits]:
                    self.submits.append(message)
                    task = asyncio.create_task(self.script(self, message))
                    self._tasks.add(task)
                return control.Ok()
            case control.CancelRequest():
                self.cancelled.append(message)
                return control.Ok()
        return control.Refused("not played by the fake", code="malformed")

    async def _on_node(self, message: Message) -> Message | None:
        if isinstance(message, control.TokenAcks):
            self.acks += message.acks
        return None

    # ── what scripts do ────────────────────────────────────────────────────────────────────────────
    async def prompt(self, submit: control.Submit) -> list[int]:
        """Ask the gateway for the attempt's whole sequence, page by page."""
        ids: list[int] = []
        subject = control.gateway_subject(submit.gateway_id)
        while len(ids) < submit.prompt_tokens:
            request = control.TokenRequest(submit.attempt, len(ids), submit.prompt_tokens)
            page = await self.bus.request(subject, request)
            assert isinstance(page, control.TokenPage), page
            assert page.start == len(ids)
            ids += unpack_tokens(page.token_ids)
        return ids

    async def say(
        self,
        submit: control.Submit,
        index: int,
        tokens: list[int] | list[Sampled],
        finish: FinishReason | None = None,
        *,
        stats: AttemptStats | None = None,
        node: str | None = None,
    ) -> None:
        sampled = tuple(t if isinstance(t, Sampled) else Sampled(t) for t in tokens)
        if stats is None and finish is not None:
            stats = STATS
        event = control.TokenEvent(submit.attempt, index, sampled, finish, stats)
        await self.bus.publish(
            control.gateway_subject(submit.gateway_id),
            control.TokenEvents(node or NODE, (event,)),
        )

    async def score(
        self,
        submit: control.Submit,
        start: int,
        logprobs: list[float],
        top: list[tuple[int, float]],
    ) -> Message:
        """Say the log-probabilities of prompt tokens `start` and on, each with the same alternatives."""
        count = len(logprobs)
        scores = TokenScores(
            len(top),
            array("f", logprobs).tobytes(),
            array("i", [token for token, _ in top] * count).tobytes(),
            array("f", [logprob for _, logprob in top] * count).tobytes(),
        )
        return await self.bus.request(
            control.gateway_subject(submit.gateway_id),
            control.PromptScored(submit.attempt, start, scores),
        )

    async def lose(
        self, submit: control.Submit, *, code: str = "transfer", retry: bool = True
    ) -> None:
        answer = await self.bus.request(
            control.gateway_subject(submit.gateway_id),
            control.AttemptOver(submit.attempt, code, "the link broke", retry),
        )
        assert isinstance(answer, control.Ok)


def answering(text: str | bytes, finish: FinishReason = "length") -> Script:
    """A script that generates `text` byte by byte, going on where an earlier attempt ended."""
    data = text.encode() if isinstance(text, str) else text

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        for index in range(submit.generated, len(data)):
            await cluster.say(submit, index, [data[index]])
        await cluster.say(submit, len(data), [], finish)

    return script


async def silence(cluster: FakeCluster, submit: control.Submit) -> None:
    """Take the request, and never say anything."""
