from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec

from dualpath.cluster.processes import alive, identify, send


def test_a_process_is_known_by_its_start_and_not_by_its_pid_alone() -> None:
    this = identify(os.getpid())
    assert this is not None
    assert alive(this)
    earlier = msgspec.structs.replace(this, start_ticks=this.start_ticks - 1)
    assert not alive(earlier)
    assert not send(earlier, signal.SIGKILL)
    assert not alive(msgspec.structs.replace(this, boot="another boot"))


def test_a_process_that_has_ended_is_not_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        found = identify(process.pid)
        assert found is not None
        assert send(found, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
    assert not alive(found)
    assert not send(found, signal.SIGTERM)


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert identify(process.pid) is None
