"""`dualpath up`, `status` and `down` with all real services; the engines are synthetic."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.cluster import LocalCluster, until

from dualpath.cluster.processes import alive


def dualpath(*arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUALPATH_")}
    return subprocess.run(
        [sys.executable, "-m", "dualpath.cli.main", *arguments],
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def ask(cluster: LocalCluster, prompt: str, url: str | None = None) -> httpx.Response:
    return httpx.post(
        f"{url or cluster.base_url}/completions",
        json={"model": cluster.model, "prompt": prompt, "max_tokens": 8, "temperature": 0},
        timeout=60,
    )


def test_the_curl_line_that_up_prints_works(cluster: LocalCluster) -> None:
    until(lambda: "  curl " in cluster.output(), "the welcome is printed")
    (line,) = (line for line in cluster.output().splitlines() if line.startswith("  curl "))
    curl, url, flag, header, data_flag, body = shlex.split(line)
    assert (curl, flag, data_flag) == ("curl", "-H", "-d")
    name, _, value = header.partition(": ")
    answer = httpx.post(url, content=body, headers={name: value}, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"]


def test_a_prompt_hits_what_an_earlier_one_stored(cluster: LocalCluster) -> None:
    prompt = "A prompt that nobody else sends. " * 40
    first, second = ask(cluster, prompt).json(), ask(cluster, prompt).json()
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    cluster.until_idle()


def test_status_shows_every_process_and_that_all_is_well(cluster: LocalCluster) -> None:
    shown = dualpath("status", "--home", str(cluster.home), "--json")
    assert shown.returncode == 0
    status = json.loads(shown.stdout)
    assert [service["name"] for service in status["record"]["services"]] == [
        "nats", "storage-0", "storage-1", "scheduler", "prefill-0", "decode-0", "gateway-0",
    ]  # fmt: skip
    assert sorted(node["node_id"] for node in status["cluster"]["nodes"]) == [
        "decode-0",
        "prefill-0",
    ]
    assert "secret" not in shown.stdout
    pools = {
        name: {pool["name"] for pool in process["pools"]}
        for name, process in status["processes"].items()
    }
    assert list(pools) == list(cluster.http_ports)
    assert pools["storage-1"] >= {"store_calls", "leases", "read_staging_bytes"}
    assert pools["gateway-0"] == {
        "gateway_requests",
        "gateway_places",
        "gateway_cancellations",
    }
    table = dualpath("status", "--home", str(cluster.home))
    assert table.returncode == 0
    for port in cluster.http_ports.values():
        assert f" {port} " in table.stdout


def test_every_service_has_metrics_and_health(cluster: LocalCluster) -> None:
    ports = cluster.http_ports
    assert len(ports) == 6
    for name, port in ports.items():
        health = httpx.get(f"http://127.0.0.1:{port}/health")
        assert health.status_code == 200, (name, health.text)
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics")
        assert f'node_id="{name}"' in metrics.text, name


def test_no_process_loads_torch_for_synthetic_engines(cluster: LocalCluster) -> None:
    for name, pid in cluster.pids.items():
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), name


def test_everything_listens_on_loopback_only(cluster: LocalCluster) -> None:
    for name, pid in cluster.pids.items():
        inodes = set()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    assert fields[1].startswith("0100007F:"), (name, line)


def test_killed_services_are_told_and_killing_the_supervisor_leaves_nothing(
    start_own_cluster: StartCluster,
) -> None:
    cluster = start_own_cluster(prefill=2, gateways=2, start_s=60)
    first, second = cluster.base_urls
    assert ask(cluster, "before", first).status_code == 200
    cluster.kill("prefill-0")
    cluster.kill("gateway-0")
    for name in ("prefill-0", "gateway-0"):
        until(lambda name=name: f"✗ {name}" in cluster.output(), "the loss is told")  # type: ignore[misc]
    assert dualpath("status", "--home", str(cluster.home)).returncode == 1
    assert ask(cluster, "after", second).status_code == 200
    cluster.kill("nats")
    until(lambda: "✗ nats" in cluster.output(), "the loss is told")
    shown = dualpath("status", "--home", str(cluster.home))
    assert shown.returncode == 1
    assert "the scheduler does not answer" in shown.stdout
    services = cluster.record.services
    cluster.process.kill()
    cluster.process.wait()
    until(
        lambda: not [service.name for service in services if alive(service.process)],
        "every process has died with the supervisor",
    )


@pytest.mark.parametrize("name", ["storage-0", "scheduler", "prefill-0", "decode-0", "nats"])
def test_a_process_that_is_started_again_by_hand_takes_its_place(
    one_shard: LocalCluster, name: str
) -> None:
    cluster = one_shard
    prompt = f"What {name} had before. " * 40
    assert ask(cluster, prompt).status_code == 200
    cluster.kill(name)
    until(lambda: f"✗ {name}" in cluster.output(), "the loss is told")
    cluster.restart(name)

    def hits() -> bool:
        answer = ask(cluster, prompt)
        return (
            answer.status_code == 200
            and answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
        )

    until(hits, f"the cluster serves from its store again after {name} came back", 60)
    cluster.until_idle()


@pytest.fixture(scope="module")
def one_shard(start_cluster: StartCluster) -> LocalCluster:
    return start_cluster(shards=1, node_lost_s=1.0)


def test_the_store_survives_and_a_killed_cluster_is_not_in_the_way(tmp_path: Path) -> None:
    prompt = "Something to remember. " * 40
    cluster = LocalCluster(tmp_path)
    first = ask(cluster, prompt).json()
    assert cluster.stop(signal.SIGKILL) == -signal.SIGKILL
    again = LocalCluster(tmp_path)
    try:
        second = ask(again, prompt).json()
    finally:
        assert again.stop() == 0
    assert second["choices"] == first["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_detached_it_is_stopped_by_down(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    up = dualpath(
        "up", "--detach", "--model", "synthetic", "--port", "0", "--home", home, "--shards", "1"
    )  # fmt: skip
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        assert "  curl http://127.0.0.1:" in up.stdout
        status = dualpath("status", "--home", home)
        assert status.returncode == 0, status.stdout + status.stderr
    finally:
        down = dualpath("down", "--home", home)
    assert down.returncode == 0
    assert "(6 processes)" in down.stdout
    assert dualpath("status", "--home", home).returncode == 3
