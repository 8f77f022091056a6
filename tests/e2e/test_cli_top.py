"""`dualpath top` on a real cluster."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from tests.e2e.conftest import StartCluster
from tests.support.cluster import LocalCluster, until

COMMAND = [sys.executable, "-m", "dualpath.cli.main", "top"]


def environment() -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUALPATH_")}
    return clean | {"COLUMNS": "150", "LINES": "60", "TERM": "xterm"}


def ask(cluster: LocalCluster) -> None:
    httpx.post(
        f"{cluster.base_url}/completions",
        json={"model": cluster.model, "prompt": "A long one. " * 200, "max_tokens": 4},
        timeout=60,
    ).raise_for_status()


def test_one_picture_shows_lanes_queues_and_paths(cluster: LocalCluster) -> None:
    ask(cluster)
    ask(cluster)
    done = subprocess.run(
        [*COMMAND, "--home", str(cluster.home), "--once", "--interval", "0.2"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    nics = {line[0] for line in lines if line and "." in line[0]}
    assert nics >= {"prefill-0.snic", "prefill-0.cnic0", "decode-0.snic", "decode-0.cnic0"}
    assert [line for line in lines if line[:1] == ["decode-0"]]
    # Both prompts were prefilled, with hits or without, since the start.
    prefills = [int(line[-1]) for line in lines if line[-2:-1] and line[-1].isdecimal()]
    assert sum(prefills) >= 2


def test_it_goes_on_until_ctrl_c_in_a_terminal(cluster: LocalCluster) -> None:
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "--home", str(cluster.home), "--interval", "0.2"],
        env=environment(),
        stdin=inside,
        stdout=inside,
        stderr=subprocess.PIPE,
    )
    os.close(inside)
    seen = b""

    def pictures() -> bool:
        nonlocal seen
        seen += os.read(terminal, 1 << 16)
        return seen.count(b"Read paths") >= 3

    try:
        until(pictures, "three pictures were shown")
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            try:
                os.read(terminal, 1 << 16)
            except OSError:
                # The other end is closed.
                process.wait(30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        if process.stderr is not None:
            process.stderr.close()


def test_it_says_when_the_cluster_stops(start_own_cluster: StartCluster) -> None:
    cluster = start_own_cluster()
    process = subprocess.Popen(
        [*COMMAND, "--home", str(cluster.home), "--interval", "0.2"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "Read paths" not in process.stdout.readline():
        assert process.poll() is None
    cluster.stop()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "has stopped" in error


def test_without_a_cluster_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--home", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "no cluster runs" in done.stderr
