"""The scheduler's decisions as a state machine: events in, answers and actions out. Pure.

No clock, no bus: `now` comes with every event, what is to be sent is collected in `actions`. Every handler is
idempotent, since every message may come twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.blocks import KEY_BYTES, Phase
from dualpath.blocks.lifecycle import TERMINAL
from dualpath.policy.api import EngineId, PlacementPolicy, ReadPathPolicy
from dualpath.scheduler.actions import Action, Ended, Forget, Note, Peer, Send
from dualpath.scheduler.book import Book
from dualpath.scheduler.members import GatewayRecord, Members
from dualpath.scheduler.nodes import NodeRecord
from dualpath.scheduler.pairing import ASSIGN_PREFILL, LOAD_DECODE, Limits, Pairing
from dualpath.scheduler.records import AttemptRecord
from dualpath.wire import control
from dualpath.wire.codec import Message
from dualpath.wire.types import Attempt, NodeStatus, PoolUse

_TELL_GATEWAY_S = 60.0
"""An AttemptOver is repeated so long: a gateway that was away must not wait for tokens for ever."""


@dataclass(frozen=True)
class Rules:
    """Times in seconds. `grace_s`: for so long a missing role is waited for before requests are refused."""

    block_tokens: int
    prefill_tokens: int
    max_queued: int
    node_lost_s: float
    grace_s: float = 5.0


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
        self.rules = rules
        self.incarnation = incarnation
        self.members = Members(rules.block_tokens, fingerprint)
        self.pairing = Pairing(
            self.members,
            Limits(prefill_tokens=rules.prefill_tokens, assign_s=rules.node_lost_s),
            decode_policy,
            prefill_policy,
            read_path,
        )
        self.book = Book(rules.block_tokens)
        self.counters: dict[str, int] = {"done": 0, "cancelled": 0, "failed": 0}
        self._role_missing_since: float | None = now
        self._away = False
        self._listening_since = now
        self._ran_at = now
        self._actions: list[Action] = []

    def take_actions(self) -> list[Action]:
        """What is to be done, in order; the list is handed over."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, message: Message, now: float) -> Message:
        """Answer one message of a node or a gateway."""
        match message:
            case control.Fetch():
                answer = self._fetch(message, now)
            case control.RegisterNode():
                answer = self._register_node(message, now)
            case control.RegisterGateway():
                answer = self._register_gateway(message, now)
            case control.Submit():
                answer = self._submit(message, now)
            case control.CancelRequest():
                answer = self._cancel(message, now)
            case control.SlotsReady():
                answer = self._slots_ready(message, now)
            case control.PhaseChange():
                answer = self._phase_change(message, now)
            case control.AttemptLost():
                answer = self._attempt_lost(message, now)
            case _:
                return control.Refused(
                    f"the scheduler takes no {type(message).__name__}", code="malformed"
                )
        self._place(now)
        return answer

    # ── members ────────────────────────────────────────────────────────────────────────────────────
    def _register_node(self, message: control.RegisterNode, now: float) -> Message:
        known = self.members.nodes.get(message.node_id)
        if known is not None and known.info.incarnation != message.incarnation:
            self._lose_node(known, "it was started anew", now)
            known = None
        if (objection := self.members.objection(message)) is not None:
            self._note("warning", "node refused", node=message.node_id, reason=objection)
            return control.Refused(objection, code="incompatible")
        if known is not None:
            known.last_seen = now
            return control.Registered(self.incarnation)
        self.members.nodes[message.node_id] = NodeRecord(message, now)
        self._note("info", "node registered", node=message.node_id, role=message.role)
        self._look_for_roles(now)
        return control.Registered(self.incarnation)

    def _register_gateway(self, message: control.RegisterGateway, now: float) -> Message:
        known = self.members.gateways.get(message.gateway_id)
        if known is not None and known.info.incarnation != message.incarnation:
            self._lose_gateway(known, "it was started anew", now)
            known = None
        if (objection := self.members.objection(message)) is not None:
            self._note("warning", "gateway refused", gateway=message.gateway_id, reason=objection)
            return control.Refused(objection, code="incompatible")
        if known is None:
            self.members.gateways[message.gateway_id] = GatewayRecord(message, now)
            self._note("info", "gateway registered", gateway=message.gateway_id)
        else:
            known.last_seen = now
        return control.Registered(self.incarnation)

    def _fetch(self, message: control.Fetch, now: float) -> Message:
        node = self.members.nodes.get(message.node_id)
        if node is None or node.info.incarnation != message.incarnation:
            return control.Refused(
                f"{message.node_id} is not registered here; register again", code="unknown"
            )
        diff = node.take_fetch(message, now)
        for attempt in diff.lost:
            reason = f"{node.name} no longer holds what it was given"
            self._fail(self.book.records[attempt], "unheld", reason, now)
        for attempt in diff.strangers:
            if attempt not in self.book.records and self.book.ended(attempt) is not Phase.DONE:
                self._abort(node.peer, attempt, "the scheduler does not know this attempt")
        return control.Registered(self.incarnation)

    def _lose_node(self, node: NodeRecord, reason: str, now: float) -> None:
        """All that it held is lost, and what others hold for the same attempts is to be freed."""
        self._note("warning", "node lost", node=node.name, reason=reason)
        del self.members.nodes[node.name]
        self._actions.append(Forget(node.peer))
        for attempt in list(node.duties):
            self._fail(
                self.book.records[attempt], "node_lost", f"{node.name} is lost: {reason}", now
            )
        self._look_for_roles(now)

    def _lose_gateway(self, gateway: GatewayRecord, reason: str, now: float) -> None:
        name = gateway.info.gateway_id
        self._note("warning", "gateway lost", gateway=name, reason=reason)
        del self.members.gateways[name]
        for record in list(self.book.records.values()):
            if record.submit.gateway_id == name:
                text = f"gateway {name} is lost: {reason}"
                # It may only have been slow, and wait for tokens when it is back.
                self._end(
                    record,
                    Phase.CANCELLED,
                    "gateway_lost",
                    text,
                    now,
                    tell_gateway=True,
                    retry=True,
                )

    def _look_for_roles(self, now: float) -> None:
        if self.members.missing_role() is None:
            self._role_missing_since = None
        elif self._role_missing_since is None:
            self._role_missing_since = now

    def _unavailable(self, now: float) -> str | None:
        """Why nothing can be served at the moment, once the grace is over."""
        since, role = self._role_missing_since, self.members.missing_role()
        if since is None or role is None or now - since < self.rules.grace_s:
            return None
        return f"no {role} node is registered; start one, or wait until it has loaded its model"

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
            self._end(current, Phase.CANCELLED, "superseded", reason, now)
        gateway = self.members.gateways[message.gateway_id]
        record = self.book.open(
            message,
            gateway_incarnation=gateway.info.incarnation,
            hbm_tokens=self.members.largest_hbm_tokens,
            now=now,
        )
        self.pairing.enter(record)
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
        if (reason := self._unavailable(now)) is not None:
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
            self._end(current, Phase.CANCELLED, "cancelled", message.reason, now)
        # A repeated Submit of a cancelled attempt may still arrive.
        self.book.void(message.attempt)
        return control.Ok()

    # ── events of nodes ────────────────────────────────────────────────────────────────────────────
    def _slots_ready(self, message: control.SlotsReady, now: float) -> Message:
        record = self.book.records.get(message.attempt)
        if record is None or not _is_at(record.decode, message.node_id):
            return _over(message.attempt)
        if record.region_key is None:
            self.members.nodes[message.node_id].duties[message.attempt].answered = True
            self.pairing.slots_ready(record, message.region_key, now)
        return control.Ok()

    def _phase_change(self, message: control.PhaseChange, now: float) -> Message:
        attempt, phase = message.attempt, _phase(message.phase)
        if phase is None:
            return control.Refused(
                f"{message.phase!r} is no phase that a node reports", "malformed"
            )
        record = self.book.records.get(attempt)
        if record is None:
            done = self.book.ended(attempt) is Phase.DONE
            return control.Ok() if done else _over(attempt)
        reporter = record.prefill if phase is Phase.PREFILL else record.decode
        if not _is_at(reporter, message.node_id) or record.prefill is None:
            return _over(attempt)
        if record.behind(phase):
            self._move(record, phase, now)
        return control.Ok()

    def _move(self, record: AttemptRecord, phase: Phase, now: float) -> None:
        if record.behind(Phase.HANDOFF) and phase is not Phase.PREFILL:
            # Handed over: the PE has freed what it held, or is about to.
            self._dismiss(record.prefill, record.attempt)
        if phase is Phase.DONE:
            self._end(record, Phase.DONE, "", "", now)
        else:
            record.reach(phase, now)

    def _attempt_lost(self, message: control.AttemptLost, now: float) -> Message:
        record = self.book.records.get(message.attempt)
        if record is None:
            return control.Ok()
        past = _is_at(record.prefill, message.node_id) and not record.behind(Phase.HANDOFF)
        given = _is_at(record.decode, message.node_id) or _is_at(record.prefill, message.node_id)
        if given and not past:
            self._dismiss(EngineId(message.node_id, 0), record.attempt)
            self._fail(record, message.code, message.reason, now, retry=message.retry, by_node=True)
        return control.Ok()

    # ── what became of sent messages ───────────────────────────────────────────────────────────────
    def answered(self, send: Send, answer: Message, now: float) -> None:
        """`send.to` has answered."""
        record = self.book.records.get(send.attempt)
        kind = type(send.message).__name__
        if record is None or not isinstance(
            send.message, control.AssignDecode | control.LoadDecode | control.AssignPrefill
        ):
            return
        node = self.members.nodes.get(send.to.name)
        if node is None or node.peer != send.to or send.attempt not in node.duties:
            return
        if isinstance(answer, control.Refused):
            reason = f"{node.name} refused {kind}: {answer.reason}"
            self._fail(record, answer.code, reason, now, retry=answer.code != "too_large")
        else:
            duty = node.duties[send.attempt]
            duty.answered = True
            if kind in (LOAD_DECODE, ASSIGN_PREFILL):
                duty.read_answered = True
                record.unanswered.discard(kind)
                if not record.unanswered and record.phase is Phase.PAIRED:
                    record.reach(Phase.LOADING, now)
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
            self._lose_node(node, reason, now)
            self._place(now)
        return False

    # ── time ───────────────────────────────────────────────────────────────────────────────────────
    def tick(self, now: float, *, connected: bool) -> None:
        """Time passes. While the bus is away (`connected` False) nobody's silence means anything."""
        self._notice_standstill(now)
        if connected:
            if self._away:
                self._listen_anew(now)
            self._lose_the_silent(now)
            self._give_up_unservable(now)
        self._away = not connected
        self._pass_deadlines(now)
        self._place(now)

    def _notice_standstill(self, now: float) -> None:
        """Where this process did not run for a while (SIGSTOP, a machine asleep), others spoke to nobody."""
        if now - self._ran_at > self.rules.node_lost_s / 2:
            self._note("warning", "the scheduler stood still", seconds=round(now - self._ran_at, 1))
            self._listen_anew(now)
        self._ran_at = now

    def _listen_anew(self, now: float) -> None:
        """Everybody's silence begins now."""
        self._listening_since = now
        for node in self.members.nodes.values():
            node.last_seen = now
        for gateway in self.members.gateways.values():
            gateway.last_seen = now

    def _lose_the_silent(self, now: float) -> None:
        limit = self.rules.node_lost_s
        for node in list(self.members.nodes.values()):
            if now - node.last_seen > limit:
                self._lose_node(node, f"it was silent for more than {limit:g} s", now)
        # Gateways beat once a second or so, and are busier than nodes' leaders.
        for gateway in list(self.members.gateways.values()):
            if now - gateway.last_seen > 2 * limit:
                self._lose_gateway(gateway, f"it was silent for more than {2 * limit:g} s", now)

    def _give_up_unservable(self, now: float) -> None:
        """Waiting attempts end when a role stays away: their gateways try again, and get the refusal."""
        if (reason := self._unavailable(now)) is None:
            return
        for record in list(self.book.records.values()):
            if record.phase is Phase.QUEUED:
                self._fail(record, "unavailable", reason, now)

    def _pass_deadlines(self, now: float) -> None:
        for record in self.book.overdue(now):
            reason = "the request's deadline has passed"
            self._end(record, Phase.CANCELLED, "deadline", reason, now, tell_gateway=True)

    def _place(self, now: float) -> None:
        if not self._away:
            self._actions.extend(self.pairing.place(now))

    # ── endings ────────────────────────────────────────────────────────────────────────────────────
    def _fail(
        self,
        record: AttemptRecord,
        code: str,
        reason: str,
        now: float,
        *,
        retry: bool = True,
        by_node: bool = False,
    ) -> None:
        self._end(
            record,
            Phase.FAILED,
            code,
            reason,
            now,
            tell_gateway=True,
            retry=retry,
            by_node=by_node,
        )

    def _end(
        self,
        record: AttemptRecord,
        phase: Phase,
        code: str,
        reason: str,
        now: float,
        *,
        tell_gateway: bool = False,
        retry: bool = False,
        by_node: bool = False,
    ) -> None:
        """The one way out: off the queues, nodes told to free what they hold, the gateway told if it waits."""
        assert phase in TERMINAL
        attempt = record.attempt
        record.reach(phase, now)
        self.book.close(record)
        self.pairing.leave(record)
        for engine in (record.decode, record.prefill):
            node = self._dismiss(engine, attempt)
            if node is not None and phase is not Phase.DONE:
                self._abort(node.peer, attempt, reason)
        if tell_gateway:
            self._actions.append(
                Send(
                    Peer("gateway", record.submit.gateway_id, record.gateway_incarnation),
                    attempt,
                    control.AttemptOver(attempt, code, reason, retry),
                    _TELL_GATEWAY_S,
                )
            )
        self.counters[phase.value] += 1
        self._actions.append(
            Ended.of(record, code, reason, by_node=by_node, now=now, block=self.rules.block_tokens)
        )

    def _dismiss(self, engine: EngineId | None, attempt: Attempt) -> NodeRecord | None:
        """End an attempt's duty at a node; returns the node if it was still in charge of it."""
        node = self.members.nodes.get(engine.node_id) if engine is not None else None
        if node is None or node.duties.pop(attempt, None) is None:
            return None
        return node

    def _abort(self, peer: Peer, attempt: Attempt, reason: str) -> None:
        message = control.Abort(attempt, reason)
        self._actions.append(Send(peer, attempt, message, self.rules.node_lost_s))

    def _note(self, level: str, event: str, **fields: object) -> None:
        self._actions.append(Note("info" if level == "info" else "warning", event, fields))

    # ── what is to be seen ─────────────────────────────────────────────────────────────────────────
    def own_status(self) -> NodeStatus:
        limit = self.rules.max_queued
        return NodeStatus(
            pools=(
                PoolUse("queue_decode", len(self.pairing.decode_queue), limit),
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


def _is_at(engine: EngineId | None, node_id: str) -> bool:
    return engine is not None and engine.node_id == node_id


def _over(attempt: Attempt) -> control.Refused:
    return control.Refused(f"{attempt} is over, or was never given to this node", code="unknown")


_REPORTED = (Phase.PREFILL, Phase.HANDOFF, Phase.DECODE, Phase.DONE)


def _phase(name: str) -> Phase | None:
    return next((phase for phase in _REPORTED if phase.value == name), None)
