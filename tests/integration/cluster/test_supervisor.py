"""The real supervisor and a real NATS server; the services are small processes that do what a test needs."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from dualpath.cli.drain import drain
from dualpath.cli.scale import scale
from dualpath.cli.words import WRONG_USE
from dualpath.cluster.home import Home
from dualpath.cluster.processes import ProcessId, alive
from dualpath.cluster.record import ClusterRecord, load_record
from dualpath.cluster.scaling import Wanted, ask
from dualpath.cluster.stop import running_cluster, stop_cluster

PROGRAM = Path(__file__).parents[2] / "support" / "tiny_cluster.py"
NAMES = ["nats", "storage-0", "storage-1", "scheduler", "prefill-0", "decode-0", "gateway-0"]


def wait_until(condition: Callable[[], object], what: str, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.01)


class Cluster:
    """One run of the supervisor in a process of its own, and all that it printed."""

    def __init__(self, home: Path, *arguments: str, **environment: str) -> None:
        self.home = Home(home)
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(home), *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    def until_says(self, text: str) -> None:
        wait_until(lambda: text in self.text, f"{text!r} in:\n{self.text}")

    def until_ready(self) -> ClusterRecord:
        self.until_says("DualPath serves")
        record = load_record(self.home)
        assert record is not None
        assert record.state == "ready"
        return record

    def end(self, number: signal.Signals | None = signal.SIGTERM) -> int:
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(10)
        return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    running: list[Cluster] = []

    def start_one(*arguments: str, **environment: str) -> Cluster:
        running.append(Cluster(tmp_path / "home", *arguments, **environment))
        return running[-1]

    yield start_one
    for cluster in running:
        cluster.process.kill()
        cluster.process.wait()


def processes(record: ClusterRecord) -> dict[str, ProcessId]:
    return {service.name: service.process for service in record.services}


def nobody_left(record: ClusterRecord) -> None:
    wait_until(
        lambda: not [name for name, process in processes(record).items() if alive(process)],
        "all processes have ended",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_cluster_starts_says_how_to_call_it_and_stops_without_a_trace(
    start: Callable[..., Cluster], number: signal.Signals
) -> None:
    cluster = start()
    record = cluster.until_ready()
    assert list(processes(record)) == NAMES
    assert all(alive(process) for process in processes(record).values())
    assert f"curl {record.base_urls[0]}/chat/completions" in cluster.text
    assert "storage-0 │ storage storage-0 starts" in cluster.text
    assert (cluster.home.logs / "decode-0.log").read_text() == "decode decode-0 starts\n"
    assert cluster.end(number) == 0
    nobody_left(record)
    assert load_record(cluster.home) is None


def test_services_get_the_secrets_in_a_private_file_and_nowhere_else(
    start: Callable[..., Cluster],
) -> None:
    cluster = start(DUALPATH_SHARDS="3", DUALPATH_LOG_LEVEL="warning")
    record = cluster.until_ready()
    assert cluster.home.settings_file.stat().st_mode & 0o077 == 0
    assert cluster.home.nats_file.stat().st_mode & 0o077 == 0
    settings = json.loads(cluster.home.settings_file.read_bytes())
    assert settings["shard_addresses"] == [f"storage-{n}=127.0.0.1:2" for n in range(3)]
    assert settings["log_level"] == "warning"
    assert settings["nats_url"] == record.nats_url
    secrets = [settings["secret"], settings["nats_password"]]
    for process in processes(record).values():
        for part in ("cmdline", "environ"):
            text = Path(f"/proc/{process.pid}/{part}").read_text()
            assert not [secret for secret in secrets if secret in text]
    scheduler = Path(f"/proc/{processes(record)['scheduler'].pid}/environ").read_text().split("\0")
    assert [name for name in scheduler if name.startswith("DUALPATH_")] == [
        f"DUALPATH_CONFIG={cluster.home.settings_file}"
    ]
    assert not [secret for secret in secrets if secret in cluster.text]


def test_a_killed_supervisor_takes_everything_with_it_and_is_not_in_the_way(
    start: Callable[..., Cluster],
) -> None:
    cluster = start()
    record = cluster.until_ready()
    assert cluster.end(signal.SIGKILL) == -signal.SIGKILL
    nobody_left(record)
    assert load_record(cluster.home) is not None, "its last words are still there"
    assert running_cluster(cluster.home) is None
    assert stop_cluster(cluster.home) is None
    again = start()
    assert again.until_ready().supervisor != record.supervisor
    assert again.end() == 0


def test_a_second_cluster_on_the_same_home_is_refused(start: Callable[..., Cluster]) -> None:
    first = start()
    record = first.until_ready()
    second = start()
    assert second.end(None) == 2
    assert f"supervisor pid {record.supervisor.pid}" in second.text
    assert load_record(first.home) == record


def test_a_service_that_fails_to_start_is_told_with_its_last_words(
    start: Callable[..., Cluster],
) -> None:
    cluster = start(TINY_SERVICES='{"decode-0": ["fail"]}')
    assert cluster.end(None) == 1
    told = cluster.text[cluster.text.index("the cluster did not start") :]
    assert "decode-0 failed with exit code 7 before it was ready" in told
    assert "what it died of" in told


@pytest.mark.slow
def test_a_service_that_never_becomes_ready_is_given_up(start: Callable[..., Cluster]) -> None:
    cluster = start(TINY_SERVICES='{"scheduler": ["silent"]}', DUALPATH_START_S="6")
    assert cluster.end(None) == 1
    assert "scheduler was not ready after 6 s" in cluster.text


def test_a_service_that_dies_during_the_start_fails_the_start(
    start: Callable[..., Cluster],
) -> None:
    cluster = start(TINY_SERVICES='{"gateway-0": ["silent"]}')
    cluster.until_says("decode-0 is ready")
    record = load_record(cluster.home)
    assert record is not None
    os.kill(processes(record)["storage-1"].pid, signal.SIGKILL)
    assert cluster.end(None) == 1
    assert "storage-1 was killed by SIGKILL during the start" in cluster.text
    nobody_left(record)


def test_a_service_that_dies_is_told_and_the_rest_goes_on(start: Callable[..., Cluster]) -> None:
    cluster = start(DUALPATH_PREFILL="2")
    record = cluster.until_ready()
    os.kill(processes(record)["prefill-1"].pid, signal.SIGKILL)
    cluster.until_says("was killed by SIGKILL; it is not restarted")
    assert "the 1 other prefill node goes on" in cluster.text
    os.kill(processes(record)["scheduler"].pid, signal.SIGTERM)
    cluster.until_says("no new request can be placed")
    now = load_record(cluster.home)
    assert now is not None
    assert {s.name: s.exit_status for s in now.services if s.exit_status is not None} == {
        "prefill-1": -signal.SIGKILL,
        "scheduler": -signal.SIGTERM,
    }
    assert alive(processes(record)["gateway-0"])
    assert cluster.end() == 0
    nobody_left(record)


def living(home: Home) -> list[str]:
    record = load_record(home)
    assert record is not None
    return [s.name for s in record.services if s.role in ("prefill", "decode") and alive(s.process)]


def test_a_cluster_gets_more_nodes_and_fewer_while_it_runs(
    start: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = start(
        TINY_SERVICES='{"decode-3": ["fail"]}',
        DUALPATH_SNIC_BANDWIDTH="50MB/s",
        DUALPATH_CNIC_BANDWIDTH="400MB/s",
    )
    cluster.until_ready()
    home = cluster.home.root
    assert scale(None, home, 2, 2) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["prefill nodes: from 1 to 2 …", "decode nodes: from 1 to 2 …"]
    assert sorted(said[2:]) == ["decode-1 serves", "prefill-1 serves"]
    assert living(cluster.home) == ["prefill-0", "decode-0", "prefill-1", "decode-1"]
    assert scale(None, home, 1, None) == 0
    assert capsys.readouterr().out.splitlines() == [
        "prefill nodes: from 2 to 1 …",
        "prefill-1 has left the cluster",
    ]
    assert living(cluster.home) == ["prefill-0", "decode-0", "decode-1"]
    cluster.until_says("P/D = 0.5 is inside the bottleneck-free range")
    # Those who are told to go are told once, whoever asks: a second signal would end them at once.
    record = load_record(cluster.home)
    assert record is not None
    for wanted in (Wanted(decode=1), Wanted(leave=("decode-1",)), Wanted(decode=1)):
        assert ask(cluster.home, record, wanted)
    assert scale(None, home, None, 1) == 0
    cluster.until_says("decode-1 has left the cluster")
    assert cluster.text.count("decode-1 is to finish what it has, and leave") == 1
    assert scale(None, home, None, 2) == 0
    capsys.readouterr()
    # Where there is nothing to do, nothing is done; and a name is not given twice.
    assert scale(None, home, 1, 2) == 0
    assert capsys.readouterr().out == ""
    assert scale(None, home, 2, 1) == 0
    assert living(cluster.home) == ["prefill-0", "decode-0", "prefill-2"]
    assert drain(None, home, "prefill-2") == 0
    assert capsys.readouterr().out.endswith("prefill-2 has left the cluster\n")
    assert living(cluster.home) == ["prefill-0", "decode-0"]
    # One that does not start is told of, and the rest goes on.
    assert scale(None, home, None, 2) == 1
    assert "decode-3 did not start" in capsys.readouterr().err
    cluster.until_says("the cluster goes on without decode-3: decode-3 failed with exit code 7")
    assert living(cluster.home) == ["prefill-0", "decode-0"]
    # One that is no process even, as there is nothing to make it of, does not count afterwards.
    record = load_record(cluster.home)
    assert record is not None
    pid = cluster.process.pid
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    free = next(number for number in count() if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free + 1, before[1]))
    assert ask(cluster.home, record, Wanted(prefill=2))
    cluster.until_says("the cluster goes on without prefill-3: [Errno 24]")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert ask(cluster.home, record, Wanted(prefill=2))
    cluster.until_says("prefill-3 is ready")
    record = load_record(cluster.home)
    assert record is not None
    assert cluster.end() == 0
    nobody_left(record)


def test_while_nodes_start_others_leave_and_a_signal_stops_all(
    start: Callable[..., Cluster],
) -> None:
    cluster = start(TINY_SERVICES='{"prefill-1": ["silent"]}')
    record = cluster.until_ready()
    assert ask(cluster.home, record, Wanted(2, 2))
    cluster.until_says("prefill prefill-1 starts")
    cluster.until_says("decode-1 is ready")
    assert drain(None, cluster.home.root, "decode-1") == 0
    # Who has not come yet counts, and leaves only afterwards.
    assert ask(cluster.home, record, Wanted(prefill=2))
    assert ask(cluster.home, record, Wanted(prefill=1))
    assert ask(cluster.home, record, Wanted(decode=2))
    cluster.until_says("decode-2 is ready")
    assert "prefill-2" not in cluster.text
    assert "prefill-1 is to finish" not in cluster.text
    assert cluster.end() == 0
    assert "killed" not in cluster.text
    nobody_left(record)


def test_when_nothing_is_left_the_cluster_ends(start: Callable[..., Cluster]) -> None:
    cluster = start()
    record = cluster.until_ready()
    for process in processes(record).values():
        os.kill(process.pid, signal.SIGKILL)
    assert cluster.end(None) == 1
    assert "no process is left" in cluster.text


def test_a_process_that_does_not_stop_is_killed_in_time(start: Callable[..., Cluster]) -> None:
    cluster = start(
        TINY_SERVICES='{"gateway-0": ["deaf"], "prefill-0": ["deaf"]}', DUALPATH_STOP_S="1"
    )
    record = cluster.until_ready()
    os.kill(processes(record)["decode-0"].pid, signal.SIGSTOP)
    assert cluster.end() == 0
    assert "killed, as they did not stop in time: gateway-0" in cluster.text
    assert "killed, as they did not stop in time: prefill-0, decode-0" in cluster.text
    nobody_left(record)


def test_a_second_signal_kills_at_once(start: Callable[..., Cluster]) -> None:
    cluster = start(TINY_SERVICES='{"gateway-0": ["deaf"]}', DUALPATH_STOP_S="3600")
    record = cluster.until_ready()
    cluster.process.send_signal(signal.SIGINT)
    cluster.until_says("stopping")
    assert cluster.end(signal.SIGINT) == 0
    nobody_left(record)


def test_a_signal_during_the_start_stops_what_has_started(
    start: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = start(TINY_SERVICES='{"decode-0": ["silent"]}')
    cluster.until_says("scheduler is ready")
    record = load_record(cluster.home)
    assert record is not None
    assert scale(None, cluster.home.root, 2, None) == WRONG_USE
    assert "only one that is ready can be scaled" in capsys.readouterr().err
    assert cluster.end() == 0
    assert "DualPath serves" not in cluster.text
    nobody_left(record)


def test_what_cannot_be_started_is_told_before_anything_is(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(DUALPATH_DECODE_HBM="1MiB")
    assert cluster.end(None) == 2
    assert "decode_hbm is 1048576 bytes" in cluster.text
    assert not (tmp_path / "home" / "logs" / "nats.log").exists()


def test_a_nats_server_of_ones_own_is_used_and_not_stopped(start: Callable[..., Cluster]) -> None:
    url = "nats://127.0.0.1:4"
    cluster = start(DUALPATH_NATS_URL=url, DUALPATH_NATS_USER="me", DUALPATH_NATS_PASSWORD="pw")
    record = cluster.until_ready()
    assert "nats" not in processes(record)
    settings = json.loads(cluster.home.settings_file.read_bytes())
    assert [settings[f"nats_{name}"] for name in ("url", "user", "password")] == [url, "me", "pw"]
    assert cluster.end() == 0


def test_detached_it_returns_once_ready_and_down_stops_it(start: Callable[..., Cluster]) -> None:
    cluster = start("--detach")
    assert cluster.end(None) == 0
    assert "DualPath serves" in cluster.text
    record = running_cluster(cluster.home)
    assert record is not None
    assert record.supervisor.pid != cluster.process.pid
    os.kill(processes(record)["storage-0"].pid, signal.SIGKILL)
    log = cluster.home.log_file("supervisor")
    wait_until(lambda: "storage-0" in log.read_text(), "the loss is in the supervisor's log")
    stopped = stop_cluster(cluster.home)
    assert stopped is not None
    assert stopped.supervisor == record.supervisor
    nobody_left(record)
    assert not alive(record.supervisor)
    assert stop_cluster(cluster.home) is None
    assert "│" not in log.read_text(), "services' lines have files of their own"


def test_detached_a_start_that_fails_fails_the_command(start: Callable[..., Cluster]) -> None:
    cluster = start("--detach", TINY_SERVICES='{"decode-0": ["fail"]}')
    assert cluster.end(None) == 1
    assert "what it died of" in cluster.text
    assert running_cluster(cluster.home) is None


def test_detached_ctrl_c_while_starting_stops_it(start: Callable[..., Cluster]) -> None:
    cluster = start("--detach", TINY_SERVICES='{"decode-0": ["silent"]}')
    cluster.until_says("scheduler is ready")
    record = load_record(cluster.home)
    assert record is not None
    assert cluster.end(signal.SIGINT) == 0
    nobody_left(record)
    assert not alive(record.supervisor)
