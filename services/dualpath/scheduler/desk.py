"""What all events of the scheduler work on: members, attempts, queues, what is to be sent; how attempts end. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dualpath.blocks import Phase
from dualpath.blocks.lifecycle import TERMINAL
from dualpath.policy.api import EngineId
from dualpath.scheduler.actions import Action, Ended, Note, Peer, Send
from dualpath.scheduler.book import Book
from dualpath.scheduler.members import Members
from dualpath.scheduler.nodes import NodeRecord
from dualpath.scheduler.pairing import Pairing
from dualpath.scheduler.records import AttemptRecord
from dualpath.wire import control
from dualpath.wire.types import Attempt

_TELL_GATEWAY_S = 60.0
"""An AttemptOver is repeated so long: a gateway that was away must not wait for tokens for ever."""


@dataclass(frozen=True)
class Rules:
    """Times in seconds. `grace_s`: for so long a missing role is waited for before requests are refused;
    `share_s`: for so long a request waits for another one that computes its prefix."""

    block_tokens: int
    prefill_tokens: int
    max_queued: int
    node_lost_s: float
    grace_s: float = 5.0
    share_s: float = 0.0


class Desk:
    """`actions` collects what the shell is to do; `take_actions` hands it over."""

    def __init__(self, rules: Rules, members: Members, pairing: Pairing) -> None:
        self.rules = rules
        self.members = members
        self.pairing = pairing
        self.book = Book(rules.block_tokens)
        self.counters: dict[str, int] = {"done": 0, "cancelled": 0, "failed": 0}
        self.actions: list[Action] = []

    def take_actions(self) -> list[Action]:
        """What is to be done, in order; the list is handed over."""
        actions, self.actions = self.actions, []
        return actions

    def fail(
        self,
        record: AttemptRecord,
        code: str,
        reason: str,
        now: float,
        *,
        retry: bool = True,
        by_node: bool = False,
    ) -> None:
        self.end(
            record,
            Phase.FAILED,
            code,
            reason,
            now,
            tell_gateway=True,
            retry=retry,
            by_node=by_node,
        )

    def end(
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
        self.pairing.leave(record, now)
        for engine in (record.decode, record.prefill):
            node = self.dismiss(engine, attempt)
            if node is not None and phase is not Phase.DONE:
                self.abort(node.peer, attempt, reason)
        if tell_gateway:
            self.actions.append(
                Send(
                    Peer("gateway", record.submit.gateway_id, record.gateway_incarnation),
                    attempt,
                    control.AttemptOver(attempt, code, reason, retry),
                    _TELL_GATEWAY_S,
                )
            )
        self.counters[phase.value] += 1
        self.actions.append(
            Ended.of(record, code, reason, by_node=by_node, now=now, block=self.rules.block_tokens)
        )

    def dismiss(self, engine: EngineId | None, attempt: Attempt) -> NodeRecord | None:
        """End an attempt's duty at a node; returns the node if it was still in charge of it."""
        node = self.members.nodes.get(engine.node_id) if engine is not None else None
        if node is None or not node.take_back(attempt):
            return None
        return node

    def abort(self, peer: Peer, attempt: Attempt, reason: str) -> None:
        message = control.Abort(attempt, reason)
        self.actions.append(Send(peer, attempt, message, self.rules.node_lost_s))

    def note(self, level: str, event: str, **fields: object) -> None:
        self.actions.append(Note("info" if level == "info" else "warning", event, fields))
