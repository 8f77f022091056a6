"""A mailbox: what has arrived, in which place, and who is gone."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.transport.collectives_mailbox import (
    MAX_MEMBERS,
    MAX_PIECE_BYTES,
    PROBE,
    Mailbox,
    MemberGone,
    Note,
    gone,
)


@given(st.integers(0, MAX_MEMBERS - 1), st.integers(0, 1 << 20), st.integers(0, MAX_PIECE_BYTES))
def test_a_note_survives_its_packing(rank: int, number: int, left: int) -> None:
    imm = Note(rank, number, left).pack()
    assert 0 <= imm < PROBE
    assert Note.unpack(imm) == (rank, number % (1 << 16), left)
    for failed in (False, True):
        farewell = gone(rank, failed=failed)
        assert 1 << 63 <= farewell < 1 << 64
        assert Note.unpack(farewell) == (rank, 0, failed)


def put(box: Mailbox, rank: int, number: int, data: bytes, left: int) -> None:
    """Write as a peer does."""
    (place,) = box.resolve(box.offset(rank, number), len(data))
    place[:] = data
    box.on_write(Note(rank, number, left).pack())


async def test_messages_of_each_sender_are_taken_in_order_out_of_two_places() -> None:
    box = Mailbox(3, 4)
    put(box, 1, 0, b"abcd", 6)
    put(box, 2, 0, b"z", 1)
    put(box, 1, 1, b"ef", 2)
    first, to_come = await box.take(1)
    assert (bytes(first), to_come) == (b"abcd", 2)
    second, to_come = await box.take(1)
    assert (bytes(second), to_come) == (b"ef", 0)
    assert bytes(first) == b"abcd"
    put(box, 1, 2, b"", 0)
    assert not (await box.take(1))[0]
    assert bytes((await box.take(2))[0]) == b"z"


async def test_numbers_wrap_around() -> None:
    box = Mailbox(2, 1)
    for number in range((1 << 16) + 3):
        put(box, 1, number, bytes([number % 251]), 1)
        assert (await box.take(1))[0] == bytes([number % 251])


async def test_who_waits_hears_of_the_loss() -> None:
    box = Mailbox(2, 4)
    taking = asyncio.create_task(box.take(1))
    await asyncio.sleep(0)
    box.on_write(gone(1, failed=False))
    with pytest.raises(MemberGone, match="left the group"):
        await taking
    with pytest.raises(MemberGone):
        box.expect(1)


async def test_a_member_that_failed_ends_it_for_all_that_still_wait() -> None:
    box = Mailbox(3, 4)
    put(box, 2, 0, b"here", 4)
    taking = asyncio.create_task(box.take(0))
    await asyncio.sleep(0)
    box.on_write(gone(1, failed=True))
    with pytest.raises(MemberGone, match="member 1 broke a collective off"):
        await taking
    assert bytes((await box.take(2))[0]) == b"here"


async def test_what_came_before_the_loss_can_still_be_taken() -> None:
    box = Mailbox(2, 4)
    put(box, 1, 0, b"last", 4)
    box.on_write(gone(1, failed=False))
    box.expect(1)
    assert bytes((await box.take(1))[0]) == b"last"
    with pytest.raises(MemberGone):
        await box.take(1)


async def test_a_message_out_of_turn_costs_its_sender_the_membership() -> None:
    box = Mailbox(3, 4)
    put(box, 1, 1, b"abcd", 4)
    with pytest.raises(MemberGone, match="message 1 came where 0 is next"):
        await box.take(1)
    put(box, 2, 0, b"fine", 4)
    assert bytes((await box.take(2))[0]) == b"fine"


async def test_a_rank_that_does_not_exist_and_a_probe_change_nothing() -> None:
    box = Mailbox(2, 4)
    box.on_write(Note(7, 0, 4).pack())
    box.on_write(gone(9, failed=True))
    box.on_write(PROBE)
    put(box, 1, 0, b"fine", 4)
    assert bytes((await box.take(1))[0]) == b"fine"


async def test_a_claim_of_more_than_a_place_holds_shows_no_more_than_the_place() -> None:
    box = Mailbox(2, 4)
    put(box, 1, 0, b"abcd", MAX_PIECE_BYTES)
    taken, to_come = await box.take(1)
    assert (bytes(taken), to_come) == (b"abcd", MAX_PIECE_BYTES - 4)
