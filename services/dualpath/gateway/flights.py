"""All requests in flight at this gateway: told to the scheduler, fed by nodes, taken by their clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dualpath.bus import Bus, BusError, PayloadTooLarge
from dualpath.gateway.emitted import Recall
from dualpath.gateway.errors import ApiError, unavailable
from dualpath.gateway.prefix import PrefixEstimate
from dualpath.gateway.request import Request, done_with
from dualpath.telemetry.logs import get_logger
from dualpath.wire.codec import Message
from dualpath.wire.control import (
    SCHEDULER,
    AttemptOver,
    CancelRequest,
    Ok,
    PromptScored,
    Refused,
    TokenAck,
    TokenAcks,
    TokenEvents,
    TokenRequest,
    node_subject,
)
from dualpath.wire.types import Attempt, Sampled

log = get_logger(__name__)

SUBMIT_S = 5.0
"""A new request waits so long for the scheduler."""
RESUBMIT_S = 30.0
"""A request that lost its attempt waits so long for one that can take it: nodes may be coming back."""
CANCEL_S = 10.0
STOP_S = 0.5
"""A client whose stop string has come waits for the cluster's last word, with which its blocks are stored: so much
longer than a decode node's grace for that."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


@dataclass
class Flight:
    """A request and what its client's side needs. Times are of the monotonic clock: the event loop's is coarse."""

    request: Request
    arrived_s: float
    deadline_s: float
    wished: bool = False
    """The deadline is one that the client set."""
    timings_s: dict[str, float] = field(default_factory=dict)
    """The gateway's own part: accept, tokenize, match, submit, ttft."""
    parts_s: dict[str, float] = field(default_factory=dict)
    """Where the time to the first token went (`breakdown.TTFT_PARTS`)."""
    last_token_s: float = 0.0
    recall: Recall = Recall()  # noqa: RUF009 - frozen
    speaker: str = ""
    """The node that tokens last came from."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.Timeout(None))
    """Ends the client's block: at the deadline, or when the gateway stops."""
    stopped: bool = False
    submitting: bool = False
    known: bool = False
    """The scheduler may have been told of the present attempt."""


class Flights:
    """Owner of every request from `open` to its end, and of the cancellations that outlive them."""

    def __init__(
        self,
        bus: Bus,
        gateway_id: str,
        prefix: PrefixEstimate,
        register: Callable[[], Awaitable[None]],
        *,
        node_lost_s: float,
        done_grace_s: float,
    ) -> None:
        """`register` makes the gateway known to a scheduler that does not know it, which takes a silent node for
        lost after `node_lost_s`."""
        self._bus = bus
        self._node_lost_s = node_lost_s
        self._done_grace_s = done_grace_s
        self._register = register
        self._gateway_id = gateway_id
        self._prefix = prefix
        self._flights: dict[str, Flight] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def cancelling(self) -> int:
        """Cancellations that the scheduler has not answered yet."""
        return len(self._cancelling)

    @asynccontextmanager
    async def open(self, flight: Flight) -> AsyncIterator[None]:
        """Hold a request while its client waits. However the block is left, nothing of it stays here, and the
        scheduler is told unless the request is over. Raises ApiError: 504 at the deadline (408 where the client set
        it), 503 on `stop`, and after it."""
        if self._stopped:
            raise _stopping()
        request = flight.request
        self._flights[request.request_id] = flight
        reason = "the client is gone"
        try:
            left_s = flight.deadline_s - time.monotonic()
            async with asyncio.timeout(left_s) as flight.limit:
                yield
        except TimeoutError:
            if not flight.limit.expired():
                raise
            reason = "the gateway is stopping" if flight.stopped else "the deadline has passed"
            raise _stopping() if flight.stopped else _too_late(flight) from None
        except ApiError as error:
            reason = error.message
            raise
        finally:
            del self._flights[request.request_id]
            if flight.known and not request.over:
                self._cancel(request.attempt, reason)

    async def more(self, flight: Flight) -> list[Sampled]:
        """Wait for tokens that the client has not had. An empty list says that the request is finished.

        Starts attempts as they become due. Raises ApiError where the request was given up.
        """
        request = flight.request
        while True:
            if fresh := request.take():
                return fresh
            if request.finish is not None:
                return []
            if request.lost is not None:
                late = request.lost.code == "deadline"
                raise _too_late(flight) if late else _given_up(request.lost)
            if request.submit_due:
                await self._submit(flight)
                continue
            flight.changed.clear()
            await flight.changed.wait()

    async def stop_after(self, flight: Flight, count: int) -> None:
        """The client wants `count` tokens and no others: end the request at its decode node, as the model would
        have. Returns when that is done, or has taken too long."""
        request = flight.request
        request.stop_after(count)
        if not request.stopped:
            return
        # The prefill node, where only the first token has come, ignores it; the next event is answered so, too.
        await self._acknowledge(flight.speaker, [request.ack()])
        try:
            async with asyncio.timeout(self._done_grace_s + STOP_S):
                while request.stopped:
                    flight.changed.clear()
                    await flight.changed.wait()
        except TimeoutError:
            if flight.limit.expired():
                raise
            request.stop_waiting()

    # ── towards the scheduler ──────────────────────────────────────────────────────────────────────
    async def _submit(self, flight: Flight) -> None:
        """Tell the scheduler of the next attempt. Raises ApiError where it does not take it."""
        request = flight.request
        first = request.number == 0
        rest_s = request.rest_s(self._node_lost_s)
        request.begin_attempt()
        if rest_s:
            await asyncio.sleep(rest_s)
        started_s = time.monotonic()
        hits = 0
        if not request.scoring:
            hits = await self._prefix.hit_blocks(request.keys.keys, request.sequence_tokens)
        flight.timings_s.setdefault("match", time.monotonic() - started_s)
        give_up_s = time.monotonic() + (SUBMIT_S if first else RESUBMIT_S)
        pause_s = _FIRST_PAUSE_S
        started_s = time.monotonic()
        while True:
            problem = await self._offer(flight, hits, give_up_s)
            if problem is None or request.submit_due or request.over:
                break
            stranger = problem.code == "unknown"
            if (
                not (problem.retry and (stranger or not first))
                or time.monotonic() + pause_s > give_up_s
            ):
                raise problem
            if stranger:
                await self._register()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        flight.timings_s.setdefault("submit", time.monotonic() - started_s)

    async def _offer(self, flight: Flight, hits: int, give_up_s: float) -> ApiError | None:
        """One Submit; what is wrong where it is not taken."""
        request = flight.request
        left_s = max(flight.deadline_s - time.monotonic(), 0.001)
        message = request.submission(self._gateway_id, hits, left_s)
        flight.known = flight.submitting = True
        try:
            answer = await self._bus.request_until_answered(
                SCHEDULER, message, deadline_s=max(give_up_s - time.monotonic(), 0.1)
            )
        except PayloadTooLarge as error:
            flight.known = False
            return ApiError(413, f"the prompt is too long to be sent: {error}", code="too_large")
        except BusError as error:
            log.warning("submission unanswered", attempt=str(request.attempt), reason=str(error))
            return unavailable("the scheduler does not answer; try again")
        finally:
            flight.submitting = False
        if isinstance(answer, Refused):
            flight.known = False
            return _refused(answer)
        return None

    def _cancel(self, attempt: Attempt, reason: str) -> None:
        task = asyncio.create_task(self._say_cancelled(attempt, reason), name=f"cancel:{attempt}")
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _say_cancelled(self, attempt: Attempt, reason: str) -> None:
        try:
            await self._bus.request_until_answered(
                SCHEDULER, CancelRequest(attempt, reason), deadline_s=CANCEL_S
            )
        except BusError as error:
            log.warning("cancellation unanswered", attempt=str(attempt), reason=str(error))

    def submit_again(self) -> None:
        """The scheduler has forgotten all that it was told: tell it again."""
        for flight in self._flights.values():
            # A submission under way is repeated until somebody answers: the new scheduler will.
            if flight.known and not flight.submitting:
                flight.request.forgotten()
                flight.changed.set()

    def stop(self) -> None:
        """End every request with an error that tells its client to come back, those to come too."""
        self._stopped = True
        for flight in self._flights.values():
            flight.stopped = True
            if not flight.limit.expired():
                flight.limit.reschedule(asyncio.get_running_loop().time())

    async def close(self, within_s: float) -> None:
        """Wait for the cancellations; those that take longer are ended."""
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=within_s)
        late = list(self._cancelling)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    # ── messages to this gateway ───────────────────────────────────────────────────────────────────
    async def handle(self, message: Message) -> Message | None:
        """Handler of the gateway's subject. What belongs to a request that is gone is answered so that its
        sender forgets it."""
        match message:
            case TokenEvents():
                await self._take_events(message)
                return None
            case TokenRequest():
                flight = self._flights.get(message.attempt.request_id)
                if flight is None:
                    return Refused(f"{message.attempt} is not at this gateway")
                return flight.request.page(message)
            case PromptScored():
                flight = self._flights.get(message.attempt.request_id)
                if flight is None:
                    return Refused(f"{message.attempt} is not at this gateway")
                return flight.request.take_scores(message)
            case AttemptOver():
                self._end_attempt(message)
                return Ok()
        return Refused(f"a gateway takes no {type(message).__name__}", code="malformed")

    async def _take_events(self, batch: TokenEvents) -> None:
        acks = []
        for event in batch.events:
            flight = self._flights.get(event.attempt.request_id)
            if flight is None:
                acks.append(done_with(event))
                continue
            acks.append(flight.request.receive(event))
            flight.speaker = batch.node_id
            flight.changed.set()
        await self._acknowledge(batch.node_id, acks)

    async def _acknowledge(self, node_id: str, acks: list[TokenAck]) -> None:
        try:
            await self._bus.publish(node_subject(node_id), TokenAcks(tuple(acks)))
        except BusError as error:
            # The node sends again what is not acknowledged.
            log.debug("acknowledgements not sent", node=node_id, reason=str(error))

    def _end_attempt(self, over: AttemptOver) -> None:
        flight = self._flights.get(over.attempt.request_id)
        if flight is None or not flight.request.lose(over):
            return
        log.warning(
            "attempt lost", request_id=over.attempt.request_id, attempt=over.attempt.number,
            code=over.code, reason=over.reason, again=flight.request.submit_due,
        )  # fmt: skip
        flight.changed.set()


def _stopping() -> ApiError:
    return unavailable("the gateway is stopping; try again", code="stopping")


def _too_late(flight: Flight) -> ApiError:
    whole_s = flight.deadline_s - flight.arrived_s
    if flight.wished:
        return ApiError(
            408, f"the request was not finished within the {whole_s:g} s that it asked for",
            param="timeout", code="timeout",
        )  # fmt: skip
    return ApiError(504, f"the request was not finished within {whole_s:g} s", code="deadline")


def _refused(answer: Refused) -> ApiError:
    match answer.code:
        case "too_long":
            return ApiError(400, answer.reason, code="context_length_exceeded")
        case "capacity":
            return ApiError(429, answer.reason, code="capacity", retry=True)
        case "malformed" | "internal":
            return ApiError(500, f"the scheduler refused: {answer.reason}", code=answer.code)
    return unavailable(answer.reason, answer.code)


def _given_up(over: AttemptOver) -> ApiError:
    sentence = f"request {over.attempt.request_id} was given up: {over.reason}"
    match over.code:
        case "too_large":
            return ApiError(413, sentence, code=over.code)
        case "malformed" | "internal":
            return ApiError(500, sentence, code=over.code)
    # Nodes or links have died, or are full: others, or the same ones later, may serve it.
    return unavailable(sentence, over.code)
