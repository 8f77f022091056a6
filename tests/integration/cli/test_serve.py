"""Single processes, started as a person or a container engine does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.support.nats import NatsServer

from dualpath.model.prepare import prepare_model
from dualpath.settings import Settings
from dualpath.wire import control
from dualpath.wire.codec import Message

WITHIN_S = 60.0


async def test_a_node_that_waits_for_the_scheduler_stops_when_told_to(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    await asyncio.to_thread(
        prepare_model, Settings(model="synthetic", home=tmp_path), lambda line: None
    )
    asked = asyncio.Event()

    async def never_answer(message: Message) -> None:
        asked.set()

    scheduler = await nats_server.connect("scheduler")
    await scheduler.serve(control.SCHEDULER, control.to_scheduler, never_answer)
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUALPATH_")}
    node = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dualpath.cli.main", "serve", "decode", "--name", "decode-0"),
        env={
            **clean,
            "DUALPATH_MODEL": "synthetic",
            "DUALPATH_HOME": str(tmp_path),
            "DUALPATH_NATS_URL": nats_server.url,
            "DUALPATH_NATS_USER": nats_server.user,
            "DUALPATH_NATS_PASSWORD": nats_server.password,
            "DUALPATH_SECRET": "a secret",
            "DUALPATH_SHARD_ADDRESSES": '["storage-0=127.0.0.1:1"]',
            "DUALPATH_LOG_FORMAT": "json",
        },
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            await asked.wait()
            node.send_signal(signal.SIGTERM)
            assert await node.wait() == 0
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()
        await scheduler.close()
