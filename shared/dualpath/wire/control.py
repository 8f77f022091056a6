"""Messages over NATS. Each subject has one receiver; a request is repeated until it is answered, so
every handler is idempotent per (request, attempt)."""

from __future__ import annotations

import msgspec

from dualpath.wire.codec import Decoder, Message
from dualpath.wire.types import (
    Address,
    Attempt,
    AttemptStats,
    EngineInfo,
    EngineLoad,
    FinishReason,
    NodeSpeed,
    NodeStatus,
    ReadPath,
    Role,
    Sampled,
    Sampling,
    TokenScores,
    Value,
)

SCHEDULER = "dualpath.scheduler"
"""Subject of the scheduler: registrations, fetches, submissions, events."""


def node_subject(node_id: str) -> str:
    return f"dualpath.node.{node_id}"


def gateway_subject(gateway_id: str) -> str:
    return f"dualpath.gateway.{gateway_id}"


# ── answers ────────────────────────────────────────────────────────────────────────────────────────
class Ok(Message, frozen=True):
    """Taken; nothing more to say."""


class Refused(Message, frozen=True):
    """Not taken; `reason` is a sentence, `code` a stable word: `busy`, `capacity`, `incompatible`, `internal`,
    `malformed`, `too_large` (for the bus), `too_long` (for the context), `unavailable`, `unknown`."""

    reason: str
    code: str = "unknown"


# ── nodes and gateways → scheduler ─────────────────────────────────────────────────────────────────
class RegisterNode(Message, frozen=True):
    """Answered with Registered, or Refused with a sentence that says what differs."""

    node_id: str
    incarnation: str
    protocol: int
    role: Role
    fingerprint: str
    block_tokens: int
    max_context: int
    buffer_slots: int
    engines: tuple[EngineInfo, ...]
    speed: NodeSpeed = NodeSpeed()


class LeaveNode(Message, frozen=True):
    """A node wants to go. From the first on it gets nothing new. Answered with Ok once it holds nothing that it was
    given; with Refused(code="busy") before, and with "unknown" where it is not registered (any more)."""

    node_id: str
    incarnation: str


class RegisterGateway(Message, frozen=True):
    gateway_id: str
    incarnation: str
    protocol: int
    fingerprint: str


class Registered(Message, frozen=True):
    """`scheduler_incarnation` changes when the scheduler has restarted and forgotten everybody."""

    scheduler_incarnation: str


class Fetch(Message, frozen=True):
    """A node's open call for work (paper §5), refreshed at least every `fetch_interval_s` and at every
    change of load. Answered with Registered; with Refused(code="unknown") when the node must register.

    `held` names the attempts that the node holds, so that both sides can drop what the other lost.
    """

    node_id: str
    incarnation: str
    number: int
    engines: tuple[EngineLoad, ...]
    read_q_tokens: int
    status: NodeStatus
    held: tuple[Attempt, ...] = ()


class Submit(Message, frozen=True):
    """A gateway asks for one attempt. Answered with Ok or Refused.

    `prompt_tokens` counts what is to be prefilled: the client's prompt and, on a later attempt, the
    `generated` tokens already streamed. `keys` are those of its full blocks, packed. Token ids stay at
    the gateway (see TokenRequest).
    """

    attempt: Attempt
    gateway_id: str
    prompt_tokens: int
    generated: int
    root: bytes
    keys: bytes
    hit_blocks_estimate: int
    sampling: Sampling
    deadline_s: float
    priority: int = 0
    """In the queues, lower goes first; among equals tenants share by weight, and of each who came first."""
    tenant: str = ""
    weight: float = 1.0


class CancelRequest(Message, frozen=True):
    """The client is gone, or the deadline has passed."""

    attempt: Attempt
    reason: str


class SlotsReady(Message, frozen=True):
    """A decode node holds DE buffer slots for the whole prompt; `region_key` opens them to a PE."""

    attempt: Attempt
    node_id: str
    region_key: int


class PhaseChange(Message, frozen=True):
    """A node moved an attempt: the PE to `prefill`, the DE to `handoff`, `decode` and `done` (`Phase.value`).

    The PE hands over only after its change was answered, or a second later: changes arrive in the order of the
    life cycle, but for those that a scheduler misses that is away.
    """

    attempt: Attempt
    node_id: str
    phase: str


class PromptStored(Message, frozen=True):
    """The first `blocks` full blocks of an attempt's prompt are readable from storage, the new ones included: who
    waits for them can go on. Said once by its decode node."""

    attempt: Attempt
    node_id: str
    blocks: int


class AttemptLost(Message, frozen=True):
    """A node gave an attempt up and has freed (or will free) all it held. `retry`: another attempt may
    succeed. `code`: `preempted`, `transfer`, `storage`, `internal`, `deadline`."""

    attempt: Attempt
    node_id: str
    code: str
    reason: str
    retry: bool


class StatusRequest(Message, frozen=True):
    """Answered with ClusterStatus."""


class WhyRequest(Message, frozen=True):
    """Answered with Why. An empty `request_id` asks for the latest `limit` decisions."""

    request_id: str = ""
    limit: int = 100


class Why(Message, frozen=True):
    """`decisions` as `dualpath.scheduler.decisions` encodes them, oldest first; `now`: the clock of their times."""

    decisions: bytes
    now: float


class NodeView(Message, frozen=True):
    node_id: str
    role: Role
    seconds_since_fetch: float
    engines: tuple[EngineLoad, ...]
    status: NodeStatus


class ClusterStatus(Message, frozen=True):
    scheduler: NodeStatus
    nodes: tuple[NodeView, ...]
    gateways: tuple[str, ...]
    queued: int
    running: int


# ── scheduler → nodes ──────────────────────────────────────────────────────────────────────────────
class AssignDecode(Message, frozen=True):
    """Reserve DE slots for the whole prompt, then say SlotsReady. HBM is promised, not allocated."""

    attempt: Attempt
    gateway_id: str
    engine: int
    prompt_tokens: int
    generated: int
    root: bytes
    keys: bytes
    sampling: Sampling
    deadline_s: float


class LoadDecode(Message, frozen=True):
    """The DE's share of the read: blocks [start, stop) of the prompt into its slots, then LoadDone over
    the data link to `prefill`. Sent also when the share is empty."""

    attempt: Attempt
    prefill: Address
    start_block: int
    stop_block: int


class AssignPrefill(Message, frozen=True):
    """Read blocks [0, prefill_blocks) on the PE side, prefill, hand over to `decode`.

    The DE side reads [prefill_blocks, hit_blocks). `keys` are those of the whole prompt's
    full blocks, packed, and `root` the parent of the first.
    """

    attempt: Attempt
    gateway_id: str
    engine: int
    prompt_tokens: int
    generated: int
    sampling: Sampling
    read_path: ReadPath
    prefill_blocks: int
    hit_blocks: int
    root: bytes
    keys: bytes
    decode: Address
    decode_node: str
    region_key: int
    deadline_s: float
    queued_s: float = 0.0
    """Seconds from Submit to this pairing."""
    waits_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Of them, those spent waiting for a DE (`decode`), its slots (`slots`), a PE (`prefill`)."""


class Abort(Message, frozen=True):
    """Stop working on an attempt and free what it holds. Unknown attempts are answered Ok."""

    attempt: Attempt
    reason: str


# ── → gateway ──────────────────────────────────────────────────────────────────────────────────────
class TokenRequest(Message, frozen=True):
    """A prefill node asks for ids [start, stop) of an attempt's prompt. Answered with TokenPage (which
    may hold fewer: ask again from where it ends) or Refused."""

    attempt: Attempt
    start: int
    stop: int


class TokenPage(Message, frozen=True):
    start: int
    token_ids: bytes


class PromptScored(Message, frozen=True):
    """Log-probabilities of prompt tokens `start` (from 1: the first has none) and on, in order, before the first
    token. Answered with Ok; with Refused where the attempt is over, or what comes before is missing."""

    attempt: Attempt
    start: int
    scores: TokenScores


class TokenEvent(Message, frozen=True):
    """Generated tokens of one attempt. `index` counts generated tokens of the *request* from 0, so the
    gateway can drop what it has and see what it misses. `finish` comes with the last, `stats` with an attempt's first
    (who reads what is known then) and its last."""

    attempt: Attempt
    index: int
    tokens: tuple[Sampled, ...]
    finish: FinishReason | None = None
    stats: AttemptStats | None = None


class TokenEvents(Message, frozen=True):
    """All that a node has for one gateway at one moment. Not answered: see TokenAcks."""

    node_id: str
    events: tuple[TokenEvent, ...]


class TokenAck(Value, frozen=True):
    """Everything below `next_index` has arrived; `finished`: the finish too. `stop`: the client has all that it
    wants, a stop string for example; the decode node ends the request as if the model had."""

    attempt: Attempt
    next_index: int
    finished: bool = False
    stop: bool = False


class TokenAcks(Message, frozen=True):
    """Gateway → node: one for each event of a TokenEvents. A decode node sends again what stays
    unacknowledged."""

    acks: tuple[TokenAck, ...]


class AttemptOver(Message, frozen=True):
    """Scheduler → gateway: this attempt is lost. With `retry` the gateway submits the next one from
    what it has streamed; else the client gets an error. Answered with Ok. `code` is that of AttemptLost, or of
    the Refused that a node answered with, or `deadline`, `gateway_lost`, `node_lost`, `unavailable`, `unheld`."""

    attempt: Attempt
    code: str
    reason: str
    retry: bool


to_scheduler = Decoder(
    RegisterNode,
    LeaveNode,
    RegisterGateway,
    Fetch,
    Submit,
    CancelRequest,
    SlotsReady,
    PhaseChange,
    AttemptLost,
    PromptStored,
    StatusRequest,
    WhyRequest,
)
to_node = Decoder(AssignDecode, LoadDecode, AssignPrefill, Abort, TokenAcks)
to_gateway = Decoder(TokenRequest, PromptScored, TokenEvents, AttemptOver)
answer = Decoder(Ok, Refused, Registered, TokenPage, ClusterStatus, Why)
