"""What a node makes of the scheduler's answers to its fetches."""

from __future__ import annotations

from pathlib import Path

from tests.support.nats import NatsServer
from tests.support.rig import rig
from tests.support.wait import until

from dualpath.wire.control import Refused


async def test_a_node_that_the_scheduler_does_not_know_registers_again(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, fetch_interval_s=0.02) as it:
        assert it.registrations == 2
        it.refusal = Refused("register again", "unknown")
        await until(lambda: it.registrations >= 6)
        it.refusal = None
        await until(lambda: all(fetch.number > 10 for fetch in it.fetches.values()))


async def test_any_other_refusal_is_met_by_the_next_fetch(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, fetch_interval_s=0.02) as it:
        it.refusal = Refused("an error of the scheduler", "internal")
        refused_from = it.fetches["p0"].number if "p0" in it.fetches else 0
        await until(lambda: it.fetches["p0"].number > refused_from + 10)
        assert it.registrations == 2
