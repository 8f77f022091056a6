from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

SERVICE = """
import asyncio, sys
from dualpath.telemetry.logs import configure_logging
from dualpath.telemetry.process import ServiceError, run_service
configure_logging("test", fmt="json", level="info")

async def main(stop):
    print("up", flush=True)
    what = sys.argv[1]
    if what == "sentence":
        raise ServiceError("port 1 is taken; choose another")
    if what == "bug":
        raise RuntimeError("broken")
    await stop.wait()
    print("down", flush=True)
    if what == "stubborn":
        await asyncio.Event().wait()

run_service(main)
"""


def start(what: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_cleanly(number: signal.Signals) -> None:
    process = start("well")
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == "down\n"
    assert json.loads(err)["event"] == "stopping"


def test_a_second_signal_ends_it_at_once() -> None:
    process = start("stubborn")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "down\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("what", "reason"),
    [("sentence", "port 1 is taken; choose another"), ("bug", "RuntimeError: broken")],
)
def test_a_failure_is_one_line_and_exit_code_1(what: str, reason: str) -> None:
    process = start(what)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    (line,) = err.splitlines()
    assert json.loads(line)["reason"] == reason
