"""One test per rule of the scheduler, on a core with simulated nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.scheduler.simulated import BLOCK, MAX_CONTEXT, SimNode, World

from dualpath.blocks import Phase
from dualpath.wire import control
from dualpath.wire.codec import PROTOCOL_VERSION, Message
from dualpath.wire.types import Attempt, NodeSpeed, Sampling


def small(*, prefill_tokens: int = 256, max_queued: int = 1000) -> tuple[World, SimNode, SimNode]:
    """One PE, one DE, a gateway."""
    world = World(prefill_tokens=prefill_tokens, max_queued=max_queued)
    world.gateway()
    return world, world.start_node("prefill-0", "prefill"), world.start_node("decode-0", "decode")


def a(request: str, number: int = 1) -> Attempt:
    return Attempt(request, number)


def refusal(answer: Message) -> control.Refused:
    assert isinstance(answer, control.Refused)
    return answer


def sent(world: World, kind: type[Message], attempt: Attempt | None = None) -> list[str]:
    """Where messages of a kind went."""
    return [
        send.to.name
        for send in world.sent
        if isinstance(send.message, kind) and attempt in (None, send.attempt)
    ]


def to_prefill(world: World, attempt: Attempt, de: SimNode, pe: SimNode) -> None:
    world.settle()
    world.slots_ready(de, attempt)
    world.settle()
    assert isinstance(world.phase(pe, attempt, Phase.PREFILL), control.Ok)


def to_decode(world: World, attempt: Attempt, de: SimNode, pe: SimNode) -> None:
    to_prefill(world, attempt, de, pe)
    pe.free(attempt)
    world.phase(de, attempt, Phase.HANDOFF)
    world.phase(de, attempt, Phase.DECODE)


# ── a request's way ────────────────────────────────────────────────────────────────────────────────
def test_a_request_goes_de_slots_pe_and_every_phase() -> None:
    world, pe, de = small()
    assert world.submit("r", 100, hits=4) == control.Ok()
    world.settle()
    assert sent(world, control.AssignDecode) == ["decode-0"]
    assert sent(world, control.AssignPrefill) == []
    assert world.core.book.records[a("r")].phase is Phase.QUEUED

    world.now += 2
    world.slots_ready(de, a("r"))
    assert world.core.book.records[a("r")].phase is Phase.PAIRED
    world.settle()
    assert world.core.book.records[a("r")].phase is Phase.LOADING

    for node, phase in (
        (pe, Phase.PREFILL), (de, Phase.HANDOFF), (de, Phase.DECODE), (de, Phase.DONE),
    ):  # fmt: skip
        world.now += 1
        assert world.phase(node, a("r"), phase) == control.Ok()
    ended = world.ended[a("r")]
    assert ended.phase is Phase.DONE
    assert ended.phases_s == {
        "queued": 2, "paired": 0, "loading": 1, "prefill": 1, "handoff": 1, "decode": 1,
    }  # fmt: skip
    assert ended.waits_s == {"decode": 0, "slots": 2, "prefill": 0}
    assert ended.total_s == 6
    assert sent(world, control.Abort) == []
    assert world.over == {}


def test_assignments_carry_what_both_nodes_need() -> None:
    world, _, de = small()
    world.core.pairing._read_path = World(path="halves").core.pairing._read_path
    world.submit("r", 100, hits=5, deadline_s=50)
    world.settle()
    world.now += 3
    world.slots_ready(de, a("r"))
    (load,) = (s.message for s in world.sent if isinstance(s.message, control.LoadDecode))
    (assign,) = (s.message for s in world.sent if isinstance(s.message, control.AssignPrefill))
    assert (load.start_block, load.stop_block) == (3, 5)
    assert load.prefill.endpoint_id == "prefill-0.0"
    assert (assign.prefill_blocks, assign.hit_blocks) == (3, 5)
    assert assign.read_path == "split"
    assert (assign.decode.endpoint_id, assign.decode_node) == ("decode-0.0", "decode-0")
    assert assign.region_key == 7
    assert assign.deadline_s == 47
    assert assign.queued_s == 3
    assert len(assign.keys) == 16 * (100 // BLOCK)


def test_the_last_token_is_never_a_hit() -> None:
    world, _, _ = small()
    world.submit("r", 4 * BLOCK, hits=4)
    assert world.core.book.records[a("r")].hit_blocks == 3
    world.submit("s", 4 * BLOCK + 1, hits=9)
    assert world.core.book.records[a("s")].hit_blocks == 4


def test_a_request_of_one_token_ends_after_handoff() -> None:
    world, pe, de = small()
    world.submit("r")
    to_prefill(world, a("r"), de, pe)
    world.phase(de, a("r"), Phase.HANDOFF)
    assert world.phase(de, a("r"), Phase.DONE) == control.Ok()
    assert "decode" not in world.ended[a("r")].phases_s


def test_repeated_and_late_reports_change_nothing() -> None:
    world, pe, de = small()
    world.submit("r")
    to_decode(world, a("r"), de, pe)
    assert world.phase(pe, a("r"), Phase.PREFILL) == control.Ok()
    assert world.slots_ready(de, a("r")) == control.Ok()
    assert world.core.book.records[a("r")].phase is Phase.DECODE
    world.phase(de, a("r"), Phase.DONE)
    assert world.phase(de, a("r"), Phase.DONE) == control.Ok()
    assert world.submit("r") == control.Ok()
    assert world.core.book.records == {}


def test_a_report_that_overtakes_implies_the_phases_before_it() -> None:
    world, _pe, de = small()
    world.submit("r")
    world.settle()
    world.slots_ready(de, a("r"))
    assert world.core.book.records[a("r")].phase is Phase.PAIRED
    assert world.phase(de, a("r"), Phase.DECODE) == control.Ok()
    assert world.core.book.records[a("r")].phase is Phase.DECODE


def test_reports_of_nodes_that_were_not_asked_are_refused() -> None:
    world, pe, de = small()
    other = world.start_node("decode-1", "decode")
    world.submit("r")
    world.settle()
    assigned = world.core.book.records[a("r")].decode
    assert assigned is not None
    wrong = other if assigned.node_id == de.name else de
    assert refusal(world.tell(control.SlotsReady(a("r"), wrong.name, 1))).code == "unknown"
    assert refusal(world.phase(pe, a("r"), Phase.PREFILL)).code == "unknown"
    assert refusal(world.phase(de, a("never"), Phase.DONE)).code == "unknown"
    answer = world.tell(control.PhaseChange(a("r"), de.name, "dancing"))
    assert refusal(answer).code == "malformed"


# ── queues ─────────────────────────────────────────────────────────────────────────────────────────
def test_the_decode_queue_is_fifo_and_its_head_blocks_what_would_fit() -> None:
    world, _, de = small()
    world.submit("large", 700)
    world.submit("second", 700)
    world.submit("little", 10)
    world.settle()
    assert list(de.held) == [a("large")]
    world.tell(control.CancelRequest(a("large"), "gone"))
    world.settle()
    assert [s.attempt for s in world.sent if isinstance(s.message, control.AssignDecode)] == [
        a("large"), a("second"), a("little"),
    ]  # fmt: skip


def test_the_prefill_queue_is_in_order_of_the_slots() -> None:
    world, _, de = small()
    for name in ("r1", "r2", "r3"):
        world.submit(name, 100)
    world.settle()
    for name in ("r3", "r1", "r2"):
        world.slots_ready(de, a(name))
    world.settle()
    paired = [s.attempt for s in world.sent if isinstance(s.message, control.AssignPrefill)]
    assert paired == [a("r3"), a("r1"), a("r2")]


def test_in_both_queues_lower_priorities_go_first_and_equals_in_order() -> None:
    world, _, de = small(prefill_tokens=128)
    world.submit("large", 900)
    world.settle()
    for name, priority in (("late", 5), ("r1", 0), ("r2", 0), ("first", -1)):
        world.submit(name, 100, priority=priority)
    world.tell(control.CancelRequest(a("large"), "gone"))
    world.settle()
    placed = [s.attempt for s in world.sent if isinstance(s.message, control.AssignDecode)][1:]
    assert placed == [a("first"), a("r1"), a("r2"), a("late")]
    for name in ("late", "r2", "r1", "first"):
        world.slots_ready(de, a(name))
    world.settle()
    paired = [s.attempt for s in world.sent if isinstance(s.message, control.AssignPrefill)]
    queue = [record.attempt for record in world.core.pairing.prefill_queue]
    # Two are paired at once, whoever they are; the others wait in order.
    assert paired == [a("late"), a("r2")]
    assert queue == [a("first"), a("r1")]


def test_a_key_that_floods_the_queue_does_not_hold_up_another() -> None:
    world, _, de = small()
    world.submit("large", 900)
    world.settle()
    for number in range(20):
        world.submit(f"flood{number}", 10, tenant="flood")
    world.submit("ann1", 10, tenant="ann")
    world.submit("ann2", 10, tenant="ann", weight=2)
    world.tell(control.CancelRequest(a("large"), "gone"))
    world.settle()
    placed = [
        s.attempt.request_id for s in world.sent if isinstance(s.message, control.AssignDecode)
    ]
    # Some of the flood had been placed beside the large one.
    assert max(placed.index("ann1"), placed.index("ann2")) <= 6
    flood = [name for name in placed if name.startswith("flood")]
    assert flood == [f"flood{number}" for number in range(20)]
    assert len(de.held) > 5


def test_a_retried_request_takes_its_old_place() -> None:
    world, pe, de = small()
    world.submit("old", 900)
    to_decode(world, a("old"), de, pe)
    world.submit("new", 900)
    world.submit("newer", 900)
    de.free(a("old"))
    world.tell(control.AttemptLost(a("old"), de.name, "preempted", "out of HBM", True))
    world.submit("old", 910, number=2)
    queue = [record.attempt for record in world.core.pairing.decode_queue]
    placed = [s.attempt for s in world.sent if isinstance(s.message, control.AssignDecode)]
    order = [*placed, *queue]
    assert order.index(a("old", 2)) < order.index(a("newer"))


def test_requests_wait_centrally_while_prefill_engines_are_busy() -> None:
    world, pe, de = small(prefill_tokens=128)
    for i in range(5):
        world.submit(f"r{i}", 100)
    world.settle()
    for i in range(5):
        world.slots_ready(de, a(f"r{i}"))
    world.settle()
    # Two always: one loads while one computes.
    assert list(pe.held) == [a("r0"), a("r1")]
    assert world.phase(pe, a("r0"), Phase.PREFILL) == control.Ok()
    pe.free(a("r0"))
    world.phase(de, a("r0"), Phase.HANDOFF)
    world.settle()
    assert list(pe.held) == [a("r1"), a("r2")]


def test_requests_wait_centrally_while_the_prefill_buffer_is_full() -> None:
    world = World(path="prefill")
    world.gateway()
    pe = world.start_node("prefill-0", "prefill", buffer_slots=10)
    de = world.start_node("decode-0", "decode")
    for i in range(6):
        world.submit(f"r{i}", 65, hits=4)
    world.settle()
    for i in range(6):
        world.slots_ready(de, a(f"r{i}"))
    world.settle()
    assert list(pe.held) == [a("r0"), a("r1"), a("r2")]


def test_hbm_is_promised_before_any_fetch_shows_it() -> None:
    world, _, _ = small()
    for i in range(20):
        world.submit(f"r{i}", 200)
    assert len(sent(world, control.AssignDecode)) == 1024 // (13 * BLOCK + BLOCK)


def test_a_prompt_as_long_as_the_hbm_still_finds_a_place() -> None:
    world, _, de = small()
    world.submit("r", 1020)
    world.settle()
    assert a("r") in de.held


def test_loads_that_fetches_do_not_show_yet_count() -> None:
    world, _pe, _ = small()
    world.start_node("decode-1", "decode")
    for i in range(4):
        world.submit(f"r{i}", 50)
    assert sorted(sent(world, control.AssignDecode)) == ["decode-0"] * 2 + ["decode-1"] * 2


def test_a_node_gets_nothing_before_its_first_fetch() -> None:
    world = World()
    world.gateway()
    world.start_node("prefill-0", "prefill")
    de = SimNode("decode-0", "decode", "1")
    world.tell(de.registration())
    world.submit("r")
    assert sent(world, control.AssignDecode) == []
    world.tell(de.fetch())
    assert sent(world, control.AssignDecode) == ["decode-0"]


def test_the_shorter_read_queue_reads_and_reads_just_assigned_count() -> None:
    world, pe, de = small()
    pe.read_q, de.read_q = 0, 100
    for i in range(3):
        world.submit(f"r{i}", 200, hits=4 + i)
    world.settle()
    for i in range(3):
        world.core.handle(control.SlotsReady(a(f"r{i}"), de.name, 7), world.now)
    paths = [
        action.message.read_path
        for action in world.core.take_actions()
        if hasattr(action, "message") and isinstance(action.message, control.AssignPrefill)
    ]
    # 0 : 100, then 64 : 100, then 144 : 100.
    assert paths == ["prefill", "prefill", "decode"]


# ── refusals ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": "other"}, "fingerprint other, this cluster fp"),
        (
            {"protocol": PROTOCOL_VERSION + 1},
            f"version {PROTOCOL_VERSION + 1}, the scheduler {PROTOCOL_VERSION}",
        ),
        ({"block_tokens": 32}, "blocks of 32 tokens, this cluster of 16"),
        ({"engines": ()}, "has no engines"),
        ({"speed": NodeSpeed(read_tokens_per_s=float("nan"))}, "reads nan"),
        ({"speed": NodeSpeed(compute_tokens_per_s=float("inf"))}, "computes inf"),
        ({"speed": NodeSpeed(read_tokens_per_s=-1.0)}, "reads -1.0"),
    ],
)
def test_a_node_that_differs_is_refused_with_what_differs(
    changes: dict[str, object], words: str
) -> None:
    world, _, _ = small()
    message = replace(SimNode("decode-9", "decode", "1").registration(), **changes)
    answer = refusal(world.tell(message))
    assert answer.code == "incompatible"
    assert words in answer.reason
    assert "decode-9" not in world.core.members.nodes


def test_a_gateway_of_another_model_is_refused() -> None:
    world, _, _ = small()
    answer = world.tell(control.RegisterGateway("gw-2", "1", PROTOCOL_VERSION, "other"))
    assert refusal(answer).code == "incompatible"


def test_another_model_may_come_when_nobody_is_left() -> None:
    world, _, _ = small()
    world.tick(10)
    assert world.core.members.fingerprint is None
    message = replace(SimNode("decode-0", "decode", "2").registration(), fingerprint="other")
    assert isinstance(world.tell(message), control.Registered)


def test_submissions_are_refused_for_a_reason() -> None:
    world, _, _ = small(max_queued=2)
    assert refusal(world.submit("r", MAX_CONTEXT)).code == "too_long"
    assert "exceed the buffer or HBM" in refusal(world.submit("r", 1024)).reason
    assert refusal(world.submit("r", 0)).code == "malformed"
    for i in range(2):
        assert world.submit(f"r{i}", 100) == control.Ok()
    assert refusal(world.submit("r9", 100)).code == "capacity"
    assert world.submit("r9", 100, number=2) == control.Ok()


def test_a_gateway_must_register_before_it_submits() -> None:
    world = World()
    assert refusal(world.submit("r")).code == "unknown"


def test_without_nodes_requests_wait_a_little_then_are_refused() -> None:
    world = World()
    world.gateway()
    assert world.submit("r") == control.Ok()
    for _ in range(6):
        world.tick(1)
        world.gateway()
    answer = refusal(world.submit("r2"))
    assert answer.code == "unavailable"
    assert "no decode node" in answer.reason
    world.settle()
    assert world.over[a("r")].code == "unavailable"
    world.start_node("decode-0", "decode")
    assert "no prefill node" in refusal(world.submit("r2")).reason
    world.start_node("prefill-0", "prefill")
    assert world.submit("r2") == control.Ok()


def test_an_older_attempt_is_refused_and_a_newer_one_takes_over() -> None:
    world, _, de = small()
    world.submit("r", number=2)
    world.settle()
    assert refusal(world.submit("r", number=1)).code == "unknown"
    world.submit("r", number=3)
    world.settle()
    assert list(de.held) == [a("r", 3)]
    assert world.over == {}


# ── endings ────────────────────────────────────────────────────────────────────────────────────────
def test_cancelling_frees_both_nodes_and_tells_nobody_else() -> None:
    world, pe, de = small()
    world.submit("r")
    to_prefill(world, a("r"), de, pe)
    assert world.tell(control.CancelRequest(a("r"), "the client is gone")) == control.Ok()
    world.settle()
    assert not de.held
    assert not pe.held
    assert world.over == {}
    assert world.ended[a("r")].phase is Phase.CANCELLED


def test_a_cancellation_overtakes_assignments_that_are_under_way() -> None:
    world, _, de = small()
    world.submit("r")
    (assign,) = world.deliverable()
    world.deliver(assign, answered=False)
    world.tell(control.CancelRequest(a("r"), "gone"))
    (abort,) = world.deliverable()
    assert isinstance(abort.message, control.Abort)
    world.deliver(abort)
    world.deliver(assign, answered=False)
    assert not de.held


def test_a_submission_that_comes_after_its_cancellation_is_void() -> None:
    world, _, _ = small()
    world.tell(control.CancelRequest(a("r"), "gone"))
    assert world.submit("r") == control.Ok()
    assert world.core.book.records == {}
    world.submitted.clear()


def test_a_lost_attempt_is_told_to_the_other_node_and_the_gateway() -> None:
    world, pe, de = small()
    world.submit("r")
    to_prefill(world, a("r"), de, pe)
    pe.free(a("r"))
    world.tell(control.AttemptLost(a("r"), pe.name, "transfer", "the link broke", True))
    assert sent(world, control.Abort) == ["decode-0"]
    world.settle()
    assert world.over[a("r")] == control.AttemptOver(a("r"), "transfer", "the link broke", True)
    assert world.ended[a("r")].by_node
    assert not de.held


def test_a_prefill_node_has_no_say_after_the_hand_over() -> None:
    world, pe, de = small()
    world.submit("r")
    to_decode(world, a("r"), de, pe)
    world.tell(control.AttemptLost(a("r"), pe.name, "transfer", "too late", True))
    assert world.core.book.records[a("r")].phase is Phase.DECODE
    world.tell(replace(pe.registration(), incarnation="2"))
    assert world.core.book.records[a("r")].phase is Phase.DECODE


def test_a_silent_node_is_lost_with_all_it_held() -> None:
    world, pe, de = small()
    world.submit("r")
    to_prefill(world, a("r"), de, pe)
    world.tick(2)
    world.gateway()
    world.tell(pe.fetch())
    world.tick(1.5)
    assert "decode-0" not in world.core.members.nodes
    assert sent(world, control.Abort) == ["prefill-0"]
    assert refusal(world.tell(de.fetch())).code == "unknown"
    world.deliver(next(s for s in world.deliverable() if s.to.kind == "gateway"))
    assert world.over[a("r")].code == "node_lost"
    assert world.over[a("r")].retry
    # The same life may come back; what it still holds is aborted after a moment.
    assert isinstance(world.tell(de.registration()), control.Registered)
    world.settle()
    assert a("r") in de.held
    world.tick(1.1)
    world.settle()
    assert not de.held


def test_a_new_life_of_a_node_ends_the_old_one_at_once() -> None:
    world, pe, de = small()
    world.submit("r")
    to_decode(world, a("r"), de, pe)
    world.nodes["decode-0"] = SimNode("decode-0", "decode", "2")
    world.tell(world.nodes["decode-0"].registration())
    assert world.ended[a("r")].code == "node_lost"
    assert refusal(world.tell(de.fetch())).code == "unknown"


def talk(world: World, seconds: float) -> None:
    """Time passes in which everybody is heard."""
    for _ in world.steps(seconds):
        world.gateway()
        for node in world.nodes.values():
            world.tell(node.fetch())
        world.tick()


def test_an_assignment_that_nobody_takes_loses_the_node() -> None:
    world, _, _ = small()
    world.submit("r")
    (assign,) = world.deliverable()
    talk(world, assign.give_up_s)
    assert not world.undeliverable(assign)
    assert "decode-0" not in world.core.members.nodes
    assert world.ended[a("r")].code == "node_lost"


def test_an_assignment_that_does_not_fit_the_bus_is_not_tried_again() -> None:
    world, _, _ = small()
    world.submit("r")
    (assign,) = world.deliverable()
    world.inbox.remove(assign)
    world.core.answered(assign, control.Refused("1.2 MB", code="too_large"), world.now)
    world.run()
    world.settle()
    assert (world.over[a("r")].code, world.over[a("r")].retry) == ("too_large", False)
    assert "decode-0" in world.core.members.nodes


def test_a_refused_assignment_ends_the_attempt_only() -> None:
    world, _, _ = small()
    world.submit("r")
    (assign,) = world.deliverable()
    world.inbox.remove(assign)
    world.core.answered(assign, control.Refused("no slots", code="capacity"), world.now)
    world.run()
    assert world.ended[a("r")].code == "capacity"
    assert "decode-0" in world.core.members.nodes


def test_a_node_that_forgot_an_attempt_is_found_out() -> None:
    world, pe, de = small()
    world.submit("r")
    to_decode(world, a("r"), de, pe)
    de.free(a("r"))
    world.settle()
    assert a("r") in world.core.book.records
    world.tick(2.1)
    world.settle()
    assert world.ended[a("r")].code == "unheld"
    assert world.over[a("r")].retry


@pytest.mark.parametrize("bus_away", [False, True])
def test_what_a_node_lacked_before_nobody_was_heard_counts_anew(bus_away: bool) -> None:
    """It has ended there, and word of that may have been on its way all the time."""
    world, pe, de = small()
    world.submit("r")
    to_decode(world, a("r"), de, pe)
    de.free(a("r"))
    world.settle()
    if bus_away:
        world.tick(2.5, connected=False)
    else:
        world.now += 2.5
    # The next fetch comes before that word, and before the scheduler looks at its clock.
    world.settle()
    assert a("r") in world.core.book.records
    world.phase(de, a("r"), Phase.DONE)
    assert world.ended[a("r")].phase is Phase.DONE


def test_a_node_that_holds_what_it_should_not_is_told_again_and_again() -> None:
    world, _, de = small()
    stranger = a("from-before", 3)
    de.take(control.AssignDecode(stranger, "gw", 0, 10, 0, b"", b"", _sampling(), 10.0))
    world.tell(de.fetch())
    assert sent(world, control.Abort) == []
    for _ in range(2):
        world.now += 1.1
        world.tell(de.fetch())
    assert sent(world, control.Abort, stranger) == ["decode-0"] * 2
    world.settle()
    assert not de.held


def test_a_finished_attempt_that_lingers_at_its_node_is_left_alone() -> None:
    world, pe, de = small()
    world.submit("r")
    to_decode(world, a("r"), de, pe)
    world.phase(de, a("r"), Phase.DONE)
    for _ in range(5):
        world.now += 1
        world.gateway()
        world.settle()
    assert sent(world, control.Abort) == []


def test_a_deadline_ends_an_attempt_wherever_it_is() -> None:
    world, pe, de = small()
    world.submit("r", deadline_s=2)
    to_prefill(world, a("r"), de, pe)
    world.tick(2)
    world.settle()
    assert world.over[a("r")].code == "deadline"
    assert not world.over[a("r")].retry
    assert not de.held
    assert not pe.held


def test_a_lost_gateway_takes_its_requests_with_it() -> None:
    world, pe, de = small()
    world.submit("r")
    to_prefill(world, a("r"), de, pe)
    for _ in range(7):
        world.tick(1)
        world.tell(pe.fetch())
        world.tell(de.fetch())
    assert world.core.status(world.now).gateways == ()
    assert world.ended[a("r")].code == "gateway_lost"
    world.settle()
    assert not de.held


# ── the bus and the status ─────────────────────────────────────────────────────────────────────────
def test_silence_means_nothing_while_the_bus_is_away() -> None:
    world, pe, de = small()
    world.submit("r")
    to_decode(world, a("r"), de, pe)
    world.tick(connected=False)
    world.tick(60, connected=False)
    world.tick()
    assert a("r") in world.core.book.records
    assert len(world.core.members.nodes) == 2
    world.tick(3.1)
    assert world.core.members.nodes == {}


def test_what_could_not_be_answered_is_sent_again_and_loses_nobody() -> None:
    world, pe, de = small()
    talk(world, 10)
    world.submit("r")
    (assign,) = world.deliverable()
    world.tick(connected=False)
    world.tick(assign.give_up_s, connected=False)
    assert world.undeliverable(assign)
    world.tick()
    # Back for a moment only: the nodes may still be connecting.
    talk(world, assign.give_up_s - 0.5)
    assert world.undeliverable(assign)
    assert len(world.core.members.nodes) == 2
    to_decode(world, a("r"), de, pe)
    talk(world, 1)
    world.core.undeliverable(assign, "not answered", world.now)
    world.run()
    assert "decode-0" not in world.core.members.nodes


def test_a_gateway_is_told_of_a_loss_however_long_the_bus_was_away() -> None:
    world, pe, _ = small()
    talk(world, 100)
    world.submit("r")
    world.settle()
    world.tell(control.AttemptLost(a("r"), "decode-0", "transfer", "the link broke", True))
    (over,) = (send for send in world.deliverable() if send.to.kind == "gateway")
    world.tick(connected=False)
    world.tick(over.give_up_s, connected=False)
    assert world.undeliverable(over)
    world.tick()
    talk(world, over.give_up_s + 0.1)
    assert not world.undeliverable(over)
    assert pe.name in world.core.members.nodes


def test_a_scheduler_that_stood_still_takes_nobody_for_lost() -> None:
    world, pe, de = small()
    talk(world, 10)
    world.submit("r0")
    to_decode(world, a("r0"), de, pe)
    world.submit("r1")
    (assign,) = (send for send in world.deliverable() if send.attempt == a("r1"))
    world.now += 60
    assert world.undeliverable(assign)
    world.tick()
    assert set(world.core.book.records) == {a("r0"), a("r1")}
    assert len(world.core.members.nodes) == 2
    assert world.core.status(world.now).gateways == ("gw",)
    world.tick(3.1)
    assert world.core.members.nodes == {}


def test_a_stale_fetch_is_answered_and_not_believed() -> None:
    world, _, de = small()
    old = de.fetch()
    de.read_q = 640
    world.tell(de.fetch())
    assert isinstance(world.tell(old), control.Registered)
    assert world.core.members.nodes["decode-0"].read_q == 640


def test_status_counts_what_waits_and_what_runs() -> None:
    world, pe, de = small()
    world.submit("r0")
    to_decode(world, a("r0"), de, pe)
    world.submit("r1", 900)
    world.now += 0.5
    answer = world.core.status(world.now)
    assert (answer.queued, answer.running) == (1, 1)
    assert [(n.node_id, n.seconds_since_fetch) for n in answer.nodes] == [
        ("decode-0", 0.5), ("prefill-0", 0.5),
    ]  # fmt: skip
    assert answer.gateways == ("gw",)


def test_unknown_messages_are_refused() -> None:
    world = World()
    assert refusal(world.tell(control.Ok())).code == "malformed"


def _sampling() -> Sampling:
    return Sampling(16, 0)


# ── joining ────────────────────────────────────────────────────────────────────────────────────────
def test_a_decode_node_that_joins_gets_what_waits_at_its_first_fetch() -> None:
    world, _, _ = small()
    for i in range(12):
        world.submit(f"r{i}", 200)
    given = sent(world, control.AssignDecode)
    assert set(given) == {"decode-0"}
    assert len(given) < 12, "some wait for HBM"
    began = world.now
    world.start_node("decode-1", "decode")
    assert set(sent(world, control.AssignDecode)[len(given) :]) == {"decode-1"}
    assert world.now == began


def test_a_prefill_node_that_joins_gets_what_waits_at_its_first_fetch() -> None:
    world, _, de = small(prefill_tokens=64)
    for i in range(4):
        world.submit(f"r{i}", 100)
    world.settle()
    for i in range(4):
        world.slots_ready(de, a(f"r{i}"))
    world.settle()
    given = sent(world, control.AssignPrefill)
    assert given == ["prefill-0"] * 2, "one computes, one loads, and the others wait"
    began = world.now
    world.start_node("prefill-1", "prefill")
    assert sent(world, control.AssignPrefill)[2:] == ["prefill-1"] * 2
    assert world.now == began


# ── leaving ────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("placement", ["adaptive", "least-tokens", "round-robin", "random"])
def test_a_node_that_leaves_gets_nothing_new_finishes_and_loses_nothing(placement: str) -> None:
    world = World(placement)
    world.gateway()
    pes = [world.start_node(f"prefill-{i}", "prefill") for i in range(2)]
    des = [world.start_node(f"decode-{i}", "decode") for i in range(2)]
    world.submit("early")
    world.settle()
    (de,) = [node for node in des if node.held]
    leave = control.LeaveNode(de.name, de.incarnation)
    assert refusal(world.tell(leave)).code == "busy"
    for i in range(6):
        world.submit(f"late-{i}")
    world.settle()
    assert set(de.held) == {a("early")}
    world.slots_ready(de, a("early"))
    world.settle()
    (pe,) = [node for node in pes if a("early") in node.held]
    assert refusal(world.tell(control.LeaveNode(pe.name, pe.incarnation))).code == "busy"
    world.phase(pe, a("early"), Phase.PREFILL)
    pe.free(a("early"))
    world.phase(de, a("early"), Phase.HANDOFF)
    assert isinstance(world.tell(control.LeaveNode(pe.name, pe.incarnation)), control.Ok)
    assert pe.name not in world.core.members.nodes
    assert refusal(world.tell(leave)).code == "busy"
    de.free(a("early"))
    world.phase(de, a("early"), Phase.DONE)
    assert isinstance(world.tell(leave), control.Ok)
    assert refusal(world.tell(leave)).code == "unknown"
    assert world.core.counters == {"done": 1, "cancelled": 0, "failed": 0}
    assert not world.over


def test_a_node_that_left_may_come_back() -> None:
    world, _, de = small()
    assert isinstance(world.tell(control.LeaveNode(de.name, de.incarnation)), control.Ok)
    world.submit("r")
    assert not sent(world, control.AssignDecode)
    world.start_node("decode-0", "decode")
    assert sent(world, control.AssignDecode) == ["decode-0"]


def test_another_life_of_a_node_cannot_make_it_leave() -> None:
    world, _, de = small()
    assert refusal(world.tell(control.LeaveNode(de.name, "before"))).code == "unknown"
    world.submit("r")
    assert sent(world, control.AssignDecode) == ["decode-0"]
