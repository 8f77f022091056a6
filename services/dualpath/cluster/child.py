"""One process of the cluster: started on a leash, its output read, its readiness and its end awaited."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from dualpath.cluster.output import Lines
from dualpath.cluster.plan import describe_exit
from dualpath.cluster.processes import ProcessId, identify
from dualpath.cluster.record import Ready
from dualpath.telemetry.leash import leashed

TAIL_LINES = 20
READY_FD = "--ready-fd"
"""Option by which a service is told the pipe into which it says, once, that it is ready."""


class ChildFailed(Exception):
    """A process ended, or stayed silent, where it should have become ready."""


class Child:
    """Owns a process from its start until `join` has returned.

    `on_line` gets each line that it prints, stdout and stderr alike, on the event loop.
    """

    def __init__(self, name: str, role: str, on_line: Callable[[str], None]) -> None:
        self.name = name
        self.role = role
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.ready: Ready | None = None
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._life: asyncio.Task[int] | None = None
        self._ready_pipe: int | None = None
        self.identity: ProcessId

    def start(
        self, command: Sequence[str], env: Mapping[str, str], *, says_ready: bool = True
    ) -> None:
        """Start `command` (its program a path) in a session of its own, so that Ctrl-C reaches the
        supervisor only. With `says_ready` it is given `--ready-fd N`. To be called on the event loop.
        Raises OSError."""
        output_read, output_write = os.pipe()
        passed: tuple[int, ...] = ()
        if says_ready:
            self._ready_pipe, ready_write = os.pipe()
            passed = (ready_write,)
            command = [*command, READY_FD, str(ready_write)]
        try:
            self._process = subprocess.Popen(
                leashed(command),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=passed,
                start_new_session=True,
            )
        except OSError:
            os.close(output_read)
            if self._ready_pipe is not None:
                os.close(self._ready_pipe)
                self._ready_pipe = None
            raise
        finally:
            for descriptor in (output_write, *passed):
                os.close(descriptor)
        # A child is at least a zombie until it is waited for, so the pid is still its own.
        handle = os.pidfd_open(self._process.pid)
        self.identity = identify(self._process.pid) or ProcessId(self._process.pid, 0, "")
        self._life = asyncio.create_task(self._live(handle, output_read), name=f"child {self.name}")

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def exit_status(self) -> int | None:
        """As `Popen.returncode`: None while it lives."""
        return self._process.returncode if self._process else None

    @property
    def how_it_ended(self) -> str:
        status = self.exit_status
        assert status is not None
        name = None
        if status < 0:
            with suppress(ValueError):
                name = signal.Signals(-status).name
        return describe_exit(status, name)

    async def until_ready(self, timeout_s: float) -> Ready:
        """Wait until it has said that it is ready. Raises ChildFailed with a sentence."""
        assert self._ready_pipe is not None, "started with says_ready"
        pipe, self._ready_pipe = self._ready_pipe, None
        said = b""
        try:
            async with asyncio.timeout(timeout_s):
                async for data in _chunks(pipe):
                    said += data
        except TimeoutError:
            raise ChildFailed(f"{self.name} was not ready after {timeout_s:g} s") from None
        if not said:
            await self.join()
            raise ChildFailed(f"{self.name} {self.how_it_ended} before it was ready")
        self.ready = msgspec.json.decode(said, type=Ready)
        return self.ready

    async def join(self) -> int:
        """Wait for its end and its last output; returns the exit status. Cancelling only ends the wait."""
        assert self._life is not None, "started"
        return await asyncio.shield(self._life)

    def signal(self, number: signal.Signals) -> None:
        """Signal it and what it started in its turn; nothing happens where it has ended."""
        # Only `_live` waits for the process, on this same loop: until it has, the kernel keeps the pid.
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, number)

    async def stop(self, limit_s: float) -> bool:
        """Ask it to end, kill it after `limit_s`, and wait. True: it ended by itself in time."""
        if self._life is None:
            return True
        self.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.join()
                return True
        self.signal(signal.SIGKILL)
        await self.join()
        return False

    async def _live(self, handle: int, output: int) -> int:
        assert self._process is not None
        reading = asyncio.create_task(self._read(output), name=f"output of {self.name}")
        try:
            await _readable(handle)
            # What it started and left behind has no owner any more; until the wait the group is surely its own.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            status = self._process.wait()
            # Whatever still holds the pipe's other end is no business of this process's end.
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.shield(reading)
        finally:
            os.close(handle)
            if self._ready_pipe is not None:
                os.close(self._ready_pipe)
                self._ready_pipe = None
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        return status

    async def _read(self, output: int) -> None:
        lines = Lines()
        try:
            async for data in _chunks(output):
                for line in lines.feed(data):
                    self._take(line)
        finally:
            for line in lines.end():
                self._take(line)

    def _take(self, line: str) -> None:
        self.tail.append(line)
        self._on_line(line)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


_PIPE_BYTES = 65536
"""All that a pipe holds."""


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What comes through a pipe, until its end; closes it. Whoever is cancelled gets what has come by then."""
    os.set_blocking(descriptor, False)
    try:
        while True:
            try:
                await _readable(descriptor)
            except asyncio.CancelledError:
                with suppress(BlockingIOError):
                    yield os.read(descriptor, _PIPE_BYTES)
                raise
            try:
                data = os.read(descriptor, _PIPE_BYTES)
            except BlockingIOError:
                continue
            if not data:
                return
            yield data
    finally:
        os.close(descriptor)
