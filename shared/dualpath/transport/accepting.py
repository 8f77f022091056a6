"""Connections that were accepted, until they have proved the secret."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dualpath.telemetry.logs import get_logger
from dualpath.transport.stream import PlainStream

log = get_logger(__name__)

MAX_UNPROVEN = 64
"""Beyond, the oldest is closed."""
_REST_S = 0.1


class Accepts:
    """`welcome` leads a connection from the address it gets to a link or to its end. `spawn` owns the tasks."""

    def __init__(
        self,
        endpoint_id: str,
        welcome: Callable[[PlainStream, str], Coroutine[Any, Any, None]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._endpoint_id = endpoint_id
        self._welcome = welcome
        self._spawn = spawn
        self._unproven: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        """Those that have not proved it yet."""
        return len(self._unproven)

    async def run(self, listener: socket.socket) -> None:
        """Accept for as long as it is not cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, where = await loop.sock_accept(listener)
            except OSError as error:
                # Out of file descriptors, most likely: others must close theirs first.
                log.error("accept_failed", endpoint=self._endpoint_id, reason=str(error))
                await asyncio.sleep(_REST_S)
                continue
            if len(self._unproven) >= MAX_UNPROVEN:
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                oldest.cancel()
            sock = PlainStream.of(accepted)
            task = self._spawn(self._welcome(sock, f"{where[0]}:{where[1]}"))
            self._unproven[task] = None
            task.add_done_callback(partial(self._proven, sock))

    def _proven(self, sock: PlainStream, task: asyncio.Task[None]) -> None:
        self._unproven.pop(task, None)
        if task.cancelled():
            # Perhaps before its first step, in which case nobody else has closed it.
            sock.close()
