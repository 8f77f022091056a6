"""Collectives over real sockets: right for groups of any size, and over for all when they are over for one."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.support.collectives import check_collectives, form, groups_of
from tests.support.transport import Bytes, Make
from tests.support.wait import until

from dualpath.lanes import Lane, PacedNic
from dualpath.transport.api import Revoked
from dualpath.transport.collectives import CollectiveError, Group
from dualpath.transport.collectives_mailbox import Note

ROOT = Path(__file__).parents[3]
SIZES = (1, 2, 3, 5, 8)


# ── right results ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("size", SIZES)
async def test_every_collective_gives_what_plain_computation_gives(size: int, make: Make) -> None:
    async with groups_of(size, make) as groups:
        await asyncio.gather(*(check_collectives(group, 8, 3000) for group in groups))


@pytest.mark.parametrize("size", SIZES)
async def test_pieces_far_longer_than_a_place_arrive_whole(size: int, make: Make) -> None:
    async with groups_of(size, make, place_bytes=512) as groups:
        await asyncio.gather(*(check_collectives(group, 3, 8 * 512 + 100) for group in groups))


async def test_one_member_gives_much_and_gets_nothing(make: Make) -> None:
    data = random.Random(3).randbytes(5_000_000)
    async with groups_of(3, make) as groups:
        given: list[list[bytes]] = [[data, data, data], [b"", b"", b""], [b"", b"", b""]]
        results = await asyncio.gather(
            *(group.all_to_all(pieces) for group, pieces in zip(groups, given, strict=True))
        )
        for got in results:
            assert [bytes(piece) for piece in got] == [data, b"", b""]


async def test_members_that_come_late_and_in_any_order_lose_nothing(make: Make) -> None:
    draw = random.Random(4)
    async with groups_of(3, make, place_bytes=64) as groups:

        async def member(group: Group, seed: int) -> list[list[bytes]]:
            pauses = random.Random(seed)
            got = []
            for number in range(60):
                for _ in range(pauses.randrange(40)):
                    await asyncio.sleep(0)
                piece = b"%d of %d" % (number, group.rank) * pauses.randrange(12)
                got.append([bytes(part) for part in await group.all_gather(piece)])
            return got

        results = await asyncio.gather(*(member(g, draw.randrange(99)) for g in groups))
        assert results[0] == results[1] == results[2]


async def test_a_result_stays_until_the_next_collective_though_others_run_ahead(make: Make) -> None:
    async with groups_of(2, make) as groups:
        slow, fast = groups
        ahead = asyncio.create_task(_gather_each(fast, [b"first", b"other"]))
        got = await slow.all_gather(b"")
        await until(lambda: slow._mailbox._arrived[1])
        assert bytes(got[1]) == b"first"
        assert bytes((await slow.all_gather(b""))[1]) == b"other"
        await ahead


async def _gather_each(group: Group, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        await group.all_gather(piece)


async def test_arrays_are_taken_as_they_are(make: Make) -> None:
    async with groups_of(2, make) as groups:
        rows = np.arange(12, dtype=np.float64).reshape(2, 6)
        sums = await asyncio.gather(
            *(g.reduce_scatter([row.data for row in rows], np.float64) for g in groups)
        )
        assert np.array_equal(np.stack(sums), 2 * rows)


async def test_bytes_go_on_the_high_lane_of_each_members_nic(make: Make) -> None:
    nics = [PacedNic(f"nic-{rank}") for rank in range(3)]
    endpoints = [await make(nic.name, nic=nic) for nic in nics]
    groups = await form(endpoints)
    await asyncio.gather(*(group.all_gather(bytes(1000)) for group in groups))
    for nic in nics:
        assert nic.moved()[Lane.HIGH, "tx"] == nic.moved()[Lane.HIGH, "rx"] == 2000
        assert nic.moved()[Lane.LOW, "tx"] == nic.moved()[Lane.LOW, "rx"] == 0
    await asyncio.gather(*(group.close() for group in groups))


# ── failures ───────────────────────────────────────────────────────────────────────────────────────
async def fails(group: Group) -> str:
    with pytest.raises(CollectiveError) as caught:
        await group.all_gather(b"piece")
    return str(caught.value)


def run_out(group: Group) -> None:
    """The deadline of the collective that goes on."""
    assert group._scope is not None
    group._scope.reschedule(asyncio.get_running_loop().time())


async def test_a_member_that_never_comes_ends_it_for_all_by_name(make: Make) -> None:
    async with groups_of(3, make, deadline_s=60) as groups:
        waiting = [asyncio.create_task(fails(group)) for group in groups[:2]]
        await until(lambda: all(group._missing == {2} for group in groups[:2]))
        run_out(groups[0])
        sentences = await asyncio.gather(*waiting)
        assert "nothing came from member 2 (member-2)" in sentences[0]
        assert "can do no more collectives" in await fails(groups[0])


async def test_a_message_that_comes_as_the_deadline_runs_out_does_not_hide_it(make: Make) -> None:
    async with groups_of(3, make, deadline_s=60) as groups:
        waiting = asyncio.create_task(fails(groups[0]))
        await until(lambda: len(groups[0]._mailbox._waiting) == 2)
        run_out(groups[0])
        groups[0]._mailbox.on_write(Note(1, 0, 0).pack())
        assert "nothing came from member 2 (member-2)" in await waiting


async def test_a_member_that_is_cancelled_ends_it_for_all_at_once(make: Make) -> None:
    async with groups_of(4, make, deadline_s=60) as groups:
        waiting = [asyncio.create_task(fails(group)) for group in groups[:2]]
        leaving = asyncio.create_task(groups[2].all_gather(b""))
        # All that these three can do is done: they wait for the fourth.
        await until(lambda: all(g._missing == {3} for g in groups[:3]))
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        for sentence in await asyncio.gather(*waiting):
            assert "member 2 broke a collective off" in sentence


async def test_a_member_that_closes_ends_what_the_others_wait_for(make: Make) -> None:
    async with groups_of(5, make, deadline_s=60) as groups:
        waiting = [asyncio.create_task(fails(group)) for group in groups[:4]]
        await until(lambda: len(groups[4]._mailbox._arrived[3]) == 1)
        await groups[4].close()
        for sentence in await asyncio.gather(*waiting):
            assert "left the group" in sentence or "broke a collective off" in sentence


async def test_a_link_that_is_lost_ends_it_for_all(make: Make) -> None:
    endpoints = [await make(f"member-{rank}") for rank in range(3)]
    groups = await form(endpoints, deadline_s=60)
    await asyncio.gather(*(group.all_gather(b"") for group in groups))
    waiting = [asyncio.create_task(fails(group)) for group in groups[:2]]
    await until(lambda: len(groups[2]._mailbox._arrived[1]) == 1)
    await endpoints[2].close()
    for sentence in await asyncio.gather(*waiting):
        assert "could not finish a collective" in sentence
    await asyncio.gather(*(group.close() for group in groups[:2]))


async def test_pieces_that_cannot_be_added_end_the_group(make: Make) -> None:
    async with groups_of(2, make) as groups:
        lengths = (4, 8)
        failed = await asyncio.gather(
            *(
                group.reduce_scatter([bytes(n), bytes(n)], np.float32)
                for group, n in zip(groups, lengths, strict=True)
            ),
            return_exceptions=True,
        )
        for error in failed:
            assert isinstance(error, CollectiveError)
            assert "[4, 8] bytes" in str(error)


async def test_wrong_use_is_refused_and_costs_nothing(make: Make) -> None:
    endpoint = await make("alone")
    with pytest.raises(ValueError, match="no member 2"):
        Group(endpoint, 2, 2, deadline_s=1)
    unjoined = Group(endpoint, 0, 2, deadline_s=1)
    with pytest.raises(RuntimeError, match="not joined"):
        await unjoined.all_gather(b"")
    with pytest.raises(ValueError, match="every member's seat"):
        unjoined.join([unjoined.seat])
    await unjoined.close()
    async with groups_of(2, make) as groups:
        with pytest.raises(ValueError, match="3 pieces"):
            await groups[0].all_to_all([b"", b"", b""])
        first = asyncio.create_task(groups[0].all_gather(b""))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one collective at a time"):
            await groups[0].all_gather(b"")
        await groups[1].all_gather(b"")
        await first


# ── memory ─────────────────────────────────────────────────────────────────────────────────────────
async def test_after_closing_nothing_reaches_the_groups_memory(make: Make) -> None:
    left, right = await make("left"), await make("right")
    groups = await form([left, right])
    await asyncio.gather(*(group.all_gather(b"before") for group in groups))
    memory, seat = groups[0]._mailbox._memory, groups[0].seat
    before = bytes(memory)
    await groups[0].close()
    with pytest.raises(Revoked):
        await right.write(seat.address, seat.key, 0, [b"after"], imm=Note(1, 1, 5).pack())
    assert bytes(memory) == before
    assert len(left._regions) == 0
    await groups[1].close()
    assert len(right._regions) == 0


async def test_what_a_cancelled_member_gave_is_not_read_afterwards(make: Make) -> None:
    """Its link still holds a part of the piece: that must be a copy."""
    slow = await make("slow", nic=PacedNic("slow", 1_000_000))
    other = await make("other")
    groups = await form([slow, other])
    region = Bytes(1)
    source = bytearray(b"\x01" * 200_000)
    giving = asyncio.create_task(groups[0].all_to_all([b"", source]))
    taking = asyncio.create_task(fails(groups[1]))
    await until(lambda: slow.nic.moved()[Lane.HIGH, "tx"] > 0)
    giving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving
    source[:] = bytes(len(source))
    assert "member 0 broke a collective off" in await taking
    # The link goes on, and in step.
    await slow.write(other.address, other.register(region), 0, [b"!"], lane=Lane.HIGH)
    assert region.memory == b"!"
    places = groups[1]._mailbox._memory
    arrived = bytes(places).rstrip(b"\0")
    assert arrived == b"\x01" * len(arrived)
    await asyncio.gather(*(group.close() for group in groups))


# ── members in processes of their own ──────────────────────────────────────────────────────────────
Peer = asyncio.subprocess.Process


async def _line(peer: Peer) -> str:
    assert peer.stdout is not None
    async with asyncio.timeout(60):
        return (await peer.stdout.readline()).decode()


def _tell(peer: Peer, text: str) -> None:
    assert peer.stdin is not None
    peer.stdin.write(f"{text}\n".encode())


@asynccontextmanager
async def processes(size: int, deadline_s: float) -> AsyncIterator[list[Peer]]:
    """The members of a joined group, each in a process."""
    async with AsyncExitStack() as stack:
        peers = []
        for rank in range(size):
            peer = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.support.collectives_peer",
                str(rank),
                str(size),
                str(deadline_s),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            stack.push_async_callback(_end, peer)
            peers.append(peer)
        everybody = json.dumps([json.loads(await _line(peer)) for peer in peers])
        for peer in peers:
            _tell(peer, everybody)
        yield peers


async def _end(peer: Peer) -> None:
    if peer.returncode is None:
        peer.send_signal(signal.SIGCONT)
        assert peer.stdin is not None
        peer.stdin.close()
    async with asyncio.timeout(30):
        await peer.wait()


async def test_processes_compute_the_same_as_plain_code() -> None:
    async with processes(3, 60.0) as peers:
        for peer in peers:
            _tell(peer, "check 20 30000")
        assert [await _line(peer) for peer in peers] == ["null\n"] * 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_member_that_is_killed_or_stopped_ends_it_for_all(how: signal.Signals) -> None:
    async with processes(3, 2.5) as peers:
        for peer in peers:
            _tell(peer, "check 1 1000")
        assert [await _line(peer) for peer in peers] == ["null\n"] * 3
        peers[2].send_signal(how)
        for peer in peers[:2]:
            _tell(peer, "wait")
        for peer in peers[:2]:
            assert "could not finish a collective" in json.loads(await _line(peer))
