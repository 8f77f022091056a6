"""What nodes say of attempts: slots, phases, losses, answers to assignments. Pure."""

from __future__ import annotations

from dualpath.blocks import Phase
from dualpath.policy.api import EngineId
from dualpath.scheduler.actions import Send
from dualpath.scheduler.desk import Desk
from dualpath.scheduler.pairing import ASSIGN_PREFILL, LOAD_DECODE
from dualpath.scheduler.records import AttemptRecord
from dualpath.wire import control
from dualpath.wire.codec import Message
from dualpath.wire.types import Attempt


class Progress:
    """Moves attempts through their phases as nodes report them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def slots_ready(self, message: control.SlotsReady, now: float) -> Message:
        record = self._desk.book.records.get(message.attempt)
        if record is None or not _is_at(record.decode, message.node_id):
            return _over(message.attempt)
        if record.region_key is None:
            self._desk.members.nodes[message.node_id].duties[message.attempt].answered = True
            self._desk.pairing.slots_ready(record, message.region_key, now)
        return control.Ok()

    def phase_change(self, message: control.PhaseChange, now: float) -> Message:
        attempt, phase = message.attempt, _phase(message.phase)
        if phase is None:
            return control.Refused(
                f"{message.phase!r} is no phase that a node reports", "malformed"
            )
        record = self._desk.book.records.get(attempt)
        if record is None:
            done = self._desk.book.ended(attempt) is Phase.DONE
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
            self._desk.dismiss(record.prefill, record.attempt)
        if phase is Phase.DONE:
            self._desk.end(record, Phase.DONE, "", "", now)
        else:
            record.reach(phase, now)

    def prompt_stored(self, message: control.PromptStored, now: float) -> Message:
        record = self._desk.book.records.get(message.attempt)
        if record is not None and _is_at(record.decode, message.node_id):
            self._desk.pairing.prompt_stored(record, message.blocks, now)
        return control.Ok()

    def attempt_lost(self, message: control.AttemptLost, now: float) -> Message:
        record = self._desk.book.records.get(message.attempt)
        if record is None:
            return control.Ok()
        past = _is_at(record.prefill, message.node_id) and not record.behind(Phase.HANDOFF)
        given = _is_at(record.decode, message.node_id) or _is_at(record.prefill, message.node_id)
        if given and not past:
            self._desk.dismiss(EngineId(message.node_id, 0), record.attempt)
            self._desk.fail(
                record, message.code, message.reason, now, retry=message.retry, by_node=True
            )
        return control.Ok()

    def answered(self, send: Send, answer: Message, now: float) -> None:
        """`send.to` has answered."""
        record = self._desk.book.records.get(send.attempt)
        kind = type(send.message).__name__
        if record is None or not isinstance(
            send.message, control.AssignDecode | control.LoadDecode | control.AssignPrefill
        ):
            return
        node = self._desk.members.nodes.get(send.to.name)
        if node is None or node.peer != send.to or send.attempt not in node.duties:
            return
        if isinstance(answer, control.Refused):
            reason = f"{node.name} refused {kind}: {answer.reason}"
            self._desk.fail(record, answer.code, reason, now, retry=answer.code != "too_large")
        else:
            duty = node.duties[send.attempt]
            duty.answered = True
            if kind in (LOAD_DECODE, ASSIGN_PREFILL):
                duty.read_answered = True
                record.unanswered.discard(kind)
                if not record.unanswered and record.phase is Phase.PAIRED:
                    record.reach(Phase.LOADING, now)


def _is_at(engine: EngineId | None, node_id: str) -> bool:
    return engine is not None and engine.node_id == node_id


def _over(attempt: Attempt) -> control.Refused:
    return control.Refused(f"{attempt} is over, or was never given to this node", code="unknown")


_REPORTED = (Phase.PREFILL, Phase.HANDOFF, Phase.DECODE, Phase.DONE)


def _phase(name: str) -> Phase | None:
    return next((phase for phase in _REPORTED if phase.value == name), None)
