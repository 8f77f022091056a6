"""The scheduler's decisions as a state machine: events in, answers and actions out. Pure.

No clock, no bus: `now` comes with every event, what is to be sent is collected in `actions`. Every handler is
idempotent, since every message may come twice.
"""

from __future__ import annotations

from dualpath.blocks import KEY_BYTES, Phase
from dualpath.policy.api import PlacementPolicy, ReadPathPolicy
from dualpath.scheduler.actions import Send
from dualpath.scheduler.desk import Desk, Rules
from dualpath.scheduler.members import Members
from dualpath.scheduler.nodes import UNHELD_S
from dualpath.scheduler.pairing import Limits, Pairing
from dualpath.scheduler.presence import Presence
from dualpath.scheduler.progress import Progress
from dualpath.wire import control
from dualpath.wire.codec import Message
from dualpath.wire.types import NodeStatus, PoolUse


class SchedulerCore:
    """See `actions`: the shell takes them after every call."""

    def __init__(
        self,
        rules: Rules,
        incarnation: str,
        *,
        decode_policy: PlacementPolicy,
        prefill_policy: PlacementPolicy,
        read_path: ReadPathPolicy,
        fingerprint: str | None,
        now: float,
    ) -> None:
        members = Members(rules.block_tokens, fingerprint)
        pairing = Pairing(
            members,
            Limits(rules.prefill_tokens, rules.node_lost_s, rules.share_s),
            decode_policy,
            prefill_policy,
            read_path,
        )
        self.incarnation = incarnation
        self.rules, self.members, self.pairing = rules, members, pairing
        self._desk = Desk(rules, members, pairing)
        self.book, self.counters = self._desk.book, self._desk.counters
        self.take_actions = self._desk.take_actions
        self._presence = Presence(self._desk, incarnation, now)
        self._progress = Progress(self._desk)
        self._away = False
        self._listening_since = now
        self._ran_at = now

    def handle(self, message: Message, now: float) -> Message:
        """Answer one message of a node or a gateway."""
        self._notice_standstill(now)
        match message:
            case control.Fetch():
                answer = self._presence.fetch(message, now)
            case control.RegisterNode():
                answer = self._presence.register_node(message, now)
            case control.LeaveNode():
                answer = self._presence.leave_node(message, now)
            case control.RegisterGateway():
                answer = self._presence.register_gateway(message, now)
            case control.Submit():
                answer = self._submit(message, now)
            case control.CancelRequest():
                answer = self._cancel(message, now)
            case control.SlotsReady():
                answer = self._progress.slots_ready(message, now)
            case control.PhaseChange():
                answer = self._progress.phase_change(message, now)
            case control.PromptStored():
                answer = self._progress.prompt_stored(message, now)
            case control.AttemptLost():
                answer = self._progress.attempt_lost(message, now)
            case _:
                return control.Refused(
                    f"the scheduler takes no {type(message).__name__}", code="malformed"
                )
        self._place(now)
        return answer

    # ── requests ───────────────────────────────────────────────────────────────────────────────────
    def _submit(self, message: control.Submit, now: float) -> Message:
        attempt = message.attempt
        if attempt in self.book.records or self.book.ended(attempt) is not None:
            return control.Ok()
        current = self.book.current(attempt.request_id)
        if current is not None and current.attempt.number > attempt.number:
            return control.Refused(f"{current.attempt} runs already", code="unknown")
        if (refusal := self._refusal(message, now)) is not None:
            return refusal
        if current is not None:
            # Its gateway has moved on; it need not be told.
            reason = "a later attempt was submitted"
            self._desk.end(current, Phase.CANCELLED, "superseded", reason, now)
        gateway = self.members.gateways[message.gateway_id]
        record = self.book.open(
            message,
            gateway_incarnation=gateway.info.incarnation,
            hbm_tokens=self.members.largest_hbm_tokens,
            now=now,
        )
        self.pairing.enter(record, now)
        return control.Ok()

    def _refusal(self, message: control.Submit, now: float) -> control.Refused | None:
        if message.gateway_id not in self.members.gateways:
            return control.Refused(
                f"gateway {message.gateway_id} is not registered here; register again",
                code="unknown",
            )
        if message.prompt_tokens < 1 or len(message.keys) % KEY_BYTES:
            return control.Refused(
                "a prompt has at least one token, and keys of 16 bytes", code="malformed"
            )
        if (reason := self._presence.unavailable(now)) is not None:
            return control.Refused(reason, code="unavailable")
        if (reason := self.members.too_long(message.prompt_tokens)) is not None:
            return control.Refused(reason, code="too_long")
        # A later attempt has a client that reads already, and was counted before.
        if message.attempt.number <= 1 and len(self.pairing) >= self.rules.max_queued:
            return control.Refused(
                f"{len(self.pairing)} requests are waiting; try again later", code="capacity"
            )
        return None

    def _cancel(self, message: control.CancelRequest, now: float) -> Message:
        current = self.book.current(message.attempt.request_id)
        if current is not None and current.attempt.number <= message.attempt.number:
            self._desk.end(current, Phase.CANCELLED, "cancelled", message.reason, now)
        # A repeated Submit of a cancelled attempt may still arrive.
        self.book.void(message.attempt)
        return control.Ok()

    # ── what became of sent messages ───────────────────────────────────────────────────────────────
    def answered(self, send: Send, answer: Message, now: float) -> None:
        """`send.to` has answered."""
        self._progress.answered(send, answer, now)
        self._place(now)

    def undeliverable(self, send: Send, reason: str, now: float) -> bool:
        """`send.to` did not answer in time. True: that says nothing about it, and `send` must be repeated.
        Else a node that should have started work is lost."""
        self._notice_standstill(now)
        # While the bus was away, or this process stood still, nobody could have answered. Whatever is given up
        # then is never sent again: an attempt would wait for it until its deadline.
        if self._away or now - self._listening_since < send.give_up_s:
            return True
        node = self.members.nodes.get(send.to.name)
        if (
            isinstance(
                send.message, control.AssignDecode | control.LoadDecode | control.AssignPrefill
            )
            and node is not None
            and node.peer == send.to
        ):
            self._presence.lose_node(node, reason, now)
            self._place(now)
        return False

    # ── time ───────────────────────────────────────────────────────────────────────────────────────
    def tick(self, now: float, *, connected: bool) -> None:
        """Time passes. While the bus is away (`connected` False) nobody's silence means anything."""
        self._notice_standstill(now)
        if self._away or not connected:
            self._listen_anew(now)
        if connected:
            self._presence.lose_the_silent(now)
            self._give_up_unservable(now)
        self._away = not connected
        self._pass_deadlines(now)
        self._place(now)

    def _notice_standstill(self, now: float) -> None:
        """Where this process did not run for a while (SIGSTOP, a machine asleep), others spoke to nobody."""
        if now - self._ran_at > min(self.rules.node_lost_s, UNHELD_S) / 2:
            self._desk.note(
                "warning", "the scheduler stood still", seconds=round(now - self._ran_at, 1)
            )
            self._listen_anew(now)
        self._ran_at = now

    def _listen_anew(self, now: float) -> None:
        self._listening_since = now
        self._presence.listen_anew(now)

    def _give_up_unservable(self, now: float) -> None:
        """Waiting attempts end when a role stays away: their gateways try again, and get the refusal."""
        if (reason := self._presence.unavailable(now)) is None:
            return
        for record in list(self.book.records.values()):
            if record.phase is Phase.QUEUED:
                self._desk.fail(record, "unavailable", reason, now)

    def _pass_deadlines(self, now: float) -> None:
        for record in self.book.overdue(now):
            reason = "the request's deadline has passed"
            self._desk.end(record, Phase.CANCELLED, "deadline", reason, now, tell_gateway=True)

    def _place(self, now: float) -> None:
        if self._away:
            return
        for send in self.pairing.place(now):
            if isinstance(send.message, control.AssignDecode):
                self.book.shares.served(self.book.records[send.attempt].arrival)
            self._desk.actions.append(send)

    # ── what is to be seen ─────────────────────────────────────────────────────────────────────────
    def own_status(self) -> NodeStatus:
        limit = self.rules.max_queued
        return NodeStatus(
            pools=(
                PoolUse("queue_decode", len(self.pairing.decode_queue), limit),
                PoolUse("queue_prefix", len(self.pairing.in_flight), limit),
                PoolUse("queue_prefill", len(self.pairing.prefill_queue), limit),
                PoolUse("attempts", len(self.book.records), 0),
            ),
            counters=dict(self.counters),
        )

    def status(self, now: float) -> control.ClusterStatus:
        nodes = sorted(self.members.nodes.values(), key=lambda node: node.name)
        return control.ClusterStatus(
            scheduler=self.own_status(),
            nodes=tuple(node.view(now) for node in nodes),
            gateways=tuple(sorted(self.members.gateways)),
            queued=len(self.pairing),
            running=len(self.book.records) - len(self.pairing),
        )
