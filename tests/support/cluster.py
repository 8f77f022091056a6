"""A whole cluster, started as users start it: `dualpath up` in a process of its own, in a home of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualpath.cluster.home import Home
from dualpath.cluster.nats_server import NAME as NATS
from dualpath.cluster.nats_server import find_nats_server
from dualpath.cluster.processes import alive, send
from dualpath.cluster.record import ClusterRecord, load_record
from dualpath.cluster.status import Status, read_status
from dualpath.telemetry.leash import leashed

SMALL: dict[str, Any] = {
    "model": "synthetic",
    "prefill_buffer": "64MiB",
    "decode_buffer": "96MiB",
    "prefill_hbm": "64MiB",
    "decode_hbm": "96MiB",
}
"""A synthetic cluster that costs little; any setting given to `LocalCluster` comes on top."""


class LocalCluster:
    """Running once made; call `stop` at the end. Dies with the test process, whatever happens."""

    def __init__(self, directory: Path, *, start_s: float = 120.0, **settings: Any) -> None:
        """`directory` gets the home, and `up.log` with all output. Raises RuntimeError with the output's end
        where the cluster does not start."""
        self.home = directory / "home"
        self.log = directory / "up.log"
        self._restarted: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "settings.json"
        config.write_text(json.dumps({**SMALL, "port": 0, **settings}))
        environment = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("DUALPATH_", "OMP_"))
        }
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                leashed(
                    [sys.executable, "-m", "dualpath.cli.main", "up",
                     "--home", str(self.home), "--config", str(config)]
                ),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._until_started(start_s)
        except BaseException:
            self.stop()
            raise

    def _until_started(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while True:
            record = load_record(Home(self.home))
            # An earlier cluster that was killed has left its record.
            mine = record is not None and record.supervisor.pid == self.process.pid
            if record is not None and mine and record.state == "ready":
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the cluster did not start:\n{self.output()[-8000:]}")
            time.sleep(0.02)

    def output(self) -> str:
        """All that `dualpath up` printed so far."""
        return self.log.read_text(errors="replace")

    @property
    def record(self) -> ClusterRecord:
        """What the supervisor last wrote down; the cluster must run."""
        record = load_record(Home(self.home))
        assert record is not None, "the cluster runs"
        return record

    @property
    def base_urls(self) -> list[str]:
        """The gateways' API, each ending in `/v1`."""
        return self.record.base_urls

    @property
    def base_url(self) -> str:
        return self.base_urls[0]

    @property
    def model(self) -> str:
        """The name to ask for in requests."""
        return self.record.model

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes that live, by name: nats, storage-0, scheduler, prefill-0, decode-0, gateway-0…"""
        return {s.name: s.process.pid for s in self.record.services if alive(s.process)}

    @property
    def http_ports(self) -> dict[str, int]:
        """Where each service has /metrics and /health."""
        return {s.name: s.ready.http_port for s in self.record.services if s.ready is not None}

    def status(self) -> Status:
        """As `dualpath status` reads it. May be called inside an event loop, which it blocks meanwhile."""
        found: list[Status | None] = []

        def read() -> None:
            found.append(asyncio.run(read_status(Home(self.home))))

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        assert found, "the status could be read"
        assert found[0] is not None, "the cluster runs"
        return found[0]

    def in_use(self) -> dict[str, int]:
        """Everything that any process holds, by `process.pool`; empty when the cluster is idle."""
        status = self.status()
        cluster = status.cluster
        assert cluster is not None, "the scheduler answers"
        held = {"scheduler.queued": cluster.queued, "scheduler.running": cluster.running}
        # A process that was started again by hand has a port that nobody wrote down.
        processes = {node.node_id: node.status for node in cluster.nodes} | status.processes
        for name, process in processes.items():
            for pool in process.pools:
                held[f"{name}.{pool.name}"] = pool.used
                held[f"{name}.{pool.name} waiting"] = pool.waiting
            held[f"{name}.read_q"] = process.read_q_tokens
        return {name: used for name, used in held.items() if used}

    def until_idle(self, within_s: float = 60.0) -> None:
        """Wait until nothing is held any more; fails with what is."""
        held = self.in_use()
        deadline = time.monotonic() + within_s
        while held:
            assert time.monotonic() < deadline, f"still held after {within_s:g} s: {held}"
            time.sleep(0.05)
            held = self.in_use()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one process of the cluster."""
        if name in self._restarted:
            self._restarted[name].send_signal(number)
            return
        (service,) = (service for service in self.record.services if service.name == name)
        assert send(service.process, number), f"{name} lives"

    def restart(self, name: str) -> None:
        """Start a killed process again, with its old name and settings; a gateway and NATS get their old port.
        It is then this object's child, and no longer the supervisor's."""
        (service,) = (service for service in self.record.services if service.name == name)
        until(lambda: not alive(service.process), f"{name}, killed before, is gone")
        if name in self._restarted:
            self._restarted.pop(name).wait(60)
        home = Home(self.home)
        if name == NATS:
            command = [str(find_nats_server()), "-c", str(home.nats_file)]
        else:
            command = [sys.executable, "-m", "dualpath.cli.main", "serve", service.role]
            command += ["--name", name, "--config", str(home.settings_file)]
            if service.role == "gateway" and service.ready is not None:
                command += ["--port", str(service.ready.http_port)]
        with (self.log.parent / f"{name}.restarted.log").open("ab") as output:
            self._restarted[name] = subprocess.Popen(
                leashed(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it, and return the exit code of `dualpath up`."""
        for process in self._restarted.values():
            process.terminate()
            process.wait(60)
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def until(condition: Callable[[], object], what: str, within_s: float = 60.0) -> None:
    """Wait for a condition, outside an event loop."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)
