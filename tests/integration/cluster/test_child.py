from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.wait import until

from dualpath.cluster.child import Child, ChildFailed
from dualpath.cluster.processes import alive, identify


def start(code: str, *, says_ready: bool = False) -> tuple[Child, list[str]]:
    lines: list[str] = []
    child = Child("x", "role", lines.append)
    child.start([sys.executable, "-c", code], os.environ, says_ready=says_ready)
    return child, lines


async def test_all_that_a_process_prints_arrives_before_join_returns() -> None:
    child, lines = start(
        "print('x' * 100_000); import sys; print('no end', end='', file=sys.stderr)"
    )
    assert await child.join() == 0
    assert "".join(lines).replace("no end", "") == "x" * 100_000
    assert "no end" in lines
    assert child.how_it_ended == "ended by itself"


async def test_what_has_come_is_told_though_its_reading_is_given_up() -> None:
    """After a process's end others may keep its pipe; its own last words are there by then, however late they are
    read."""
    lines: list[str] = []
    child = Child("x", "role", lines.append)
    output, process = os.pipe()
    reading = asyncio.create_task(child._read(output))
    await asyncio.sleep(0)
    os.write(process, b"the last\nwords")
    reading.cancel()
    await asyncio.wait({reading})
    os.close(process)
    assert reading.cancelled()
    assert lines == ["the last", "words"]


async def test_bytes_that_are_no_text_are_shown_all_the_same() -> None:
    child, lines = start(r"import os; os.write(1, b'\xff\xfe ok\r\n')")
    await child.join()
    assert lines == ["\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} ok"]


async def test_an_exit_by_signal_is_named() -> None:
    child, _ = start("import os; os.kill(os.getpid(), 11)")
    assert await child.join() == -signal.SIGSEGV
    assert child.how_it_ended == "was killed by SIGSEGV"


async def test_join_may_be_asked_often_and_cancelling_it_ends_the_wait_only() -> None:
    child, _ = start("import signal; signal.pause()")
    waiting = asyncio.create_task(child.join())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert alive(child.identity)
    assert await child.stop(10.0)
    assert await child.join() == -signal.SIGTERM


async def test_a_process_that_ends_without_a_word_is_told() -> None:
    child, _ = start("raise SystemExit(3)", says_ready=True)
    with pytest.raises(ChildFailed, match="x failed with exit code 3 before it was ready"):
        await child.until_ready(30.0)


async def test_descendants_stop_too_and_do_not_hold_the_end_up(tmp_path: Path) -> None:
    """The second process ignores SIGTERM and keeps the pipe open."""
    note = tmp_path / "pid"
    inner = (
        "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    )
    child, lines = start(
        "import pathlib, signal, subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(p.pid))\nsignal.pause()"
    )
    await until(lambda: "up" in lines)
    assert await child.stop(10.0)
    await until(lambda: identify(int(note.read_text())) is None, what="no descendant")


async def test_stopping_twice_is_fine() -> None:
    child, _ = start("import signal; signal.pause()")
    assert await child.stop(10.0)
    assert await child.stop(0.0)


async def test_a_child_leaves_no_descriptor_open() -> None:
    def open_now() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    child, _ = start("print('warm up')")
    await child.join()
    before = open_now()
    cases: list[Callable[[], tuple[Child, list[str]]]] = [
        lambda: start("print('x')"),
        lambda: start("raise SystemExit(1)", says_ready=True),
    ]
    for case in cases:
        child, _ = case()
        await child.join()
    assert open_now() == before
