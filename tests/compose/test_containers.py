"""The cluster of compose/, run by a real Docker engine with the real model. In the order of this file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import openai
import pytest
from tests.support.compose import ContainerCluster, why_no_engine

pytestmark = [pytest.mark.compose, pytest.mark.timeout(3600)]

SERVICES = {
    *("nats", "storage-0", "storage-1", "scheduler", "prefill-0", "decode-0", "gateway"),
}
RECOVERY_S = 120.0
STORY = " ".join(f"Day {i}: the ship sailed {3 * i} miles and met {i} gulls." for i in range(1, 20))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerCluster]:
    if (reason := why_no_engine()) is not None:
        pytest.skip(reason)
    cluster = ContainerCluster(tmp_path_factory.mktemp("compose"))
    try:
        cluster.run("build")
        cluster.up()
        yield cluster
    finally:
        cluster.run("--profile", "1p2d", "down", "-v", "--remove-orphans")


def ask(cluster: ContainerCluster, *turns: str) -> tuple[str, int]:
    """The answer to the last of `turns`, which begin with the user's, and the prompt's cached tokens."""
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{cluster.port}/v1", api_key="none", max_retries=0
    )
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[
            {"role": "assistant", "content": turn} if i % 2 else {"role": "user", "content": turn}
            for i, turn in enumerate(turns)
        ],
        max_tokens=16,
        temperature=0,
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    text = answer.choices[0].message.content
    assert text
    return text, answer.usage.prompt_tokens_details.cached_tokens or 0


def ask_until_served(cluster: ContainerCluster, *turns: str) -> tuple[str, int]:
    """`ask`, again as long as the API says that something that it needs is away."""
    deadline = time.monotonic() + RECOVERY_S
    while True:
        try:
            return ask(cluster, *turns)
        except openai.InternalServerError as error:
            if error.status_code != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def until_healthy(cluster: ContainerCluster) -> None:
    deadline = time.monotonic() + RECOVERY_S
    while unwell := SERVICES - {
        name for name, entry in cluster.containers().items() if entry["Health"] == "healthy"
    }:
        assert time.monotonic() < deadline, f"{unwell} did not become healthy"
        time.sleep(0.5)


def test_all_services_are_healthy(cluster: ContainerCluster) -> None:
    found = cluster.containers()
    assert found["prepare"]["ExitCode"] == 0
    assert {name for name, entry in found.items() if entry["Health"] == "healthy"} == SERVICES


def test_the_api_answers_at_the_published_port_and_later_turns_are_cached(
    cluster: ContainerCluster,
) -> None:
    question = f"{STORY} How far did it sail on day 4?"
    first, cached = ask(cluster, question)
    assert cached == 0
    again, cached = ask(cluster, question)
    assert cached > 0
    assert again == first
    _, more = ask(cluster, question, first, "And how many gulls did it meet?")
    assert more >= cached


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_container_may_do_no_more_than_it_must(cluster: ContainerCluster, service: str) -> None:
    code = """
import json, os, pathlib
def writable(path):
    try:
        (pathlib.Path(path) / "probe").touch()
    except OSError:
        return False
    return True
status = dict(
    line.split(":\\t", 1) for line in open("/proc/1/status").read().splitlines() if ":\\t" in line
)
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")],
    "no new privileges": status["NoNewPrivs"],
    "writable": [p for p in ("/", "/opt/dualpath", "/var/lib/dualpath", "/var/lib/dualpath/models",
                             "/run/dualpath") if writable(p)],
    "secrets": {p.name: oct(p.stat().st_mode & 0o777) for p in pathlib.Path("/run/dualpath").iterdir()},
    "in the environment": [n for n in os.environ if "SECRET" in n or "PASSWORD" in n],
}))
"""
    # Shards have no models: their directory is an empty one of the image, on its read-only file system.
    assert json.loads(cluster.python(service, code)) == {
        "uid": 10001,
        "capabilities": [0, 0, 0],
        "no new privileges": "1",
        "writable": [],
        "secrets": {"settings.json": "0o600", "nats.conf": "0o600"},
        "in the environment": [],
    }


def test_only_the_gateway_is_published_and_on_loopback_only(cluster: ContainerCluster) -> None:
    published = {
        name: entry["Publishers"]
        for name, entry in cluster.containers().items()
        if any(place["PublishedPort"] for place in entry["Publishers"] or [])
    }
    assert list(published) == ["gateway"]
    assert {place["URL"] for place in published["gateway"]} == {"127.0.0.1"}


def test_a_killed_decode_node_is_back_after_up(cluster: ContainerCluster) -> None:
    question = f"{STORY} How far did it sail on day 5?"
    before, _ = ask(cluster, question)
    cluster.run("kill", "decode-0")
    assert cluster.containers()["decode-0"]["State"] == "exited"
    cluster.up()
    after, cached = ask(cluster, question)
    assert after == before
    assert cached > 0


@pytest.mark.parametrize("service", ["prefill-0", "storage-0", "scheduler", "nats"])
def test_a_process_that_crashes_is_started_again(cluster: ContainerCluster, service: str) -> None:
    question = f"{STORY} How many gulls did it meet on day 6?"
    before, _ = ask_until_served(cluster, question)
    cluster.crash(service)
    after, _ = ask_until_served(cluster, question)
    assert after == before
    # Others may count as unhealthy for some seconds more, and `up --wait` gives up on such ones at once.
    until_healthy(cluster)


def test_a_profile_adds_the_second_decode_node(cluster: ContainerCluster) -> None:
    cluster.up("decode-1")
    code = """
import urllib.request
for line in urllib.request.urlopen("http://127.0.0.1:9100/metrics").read().decode().splitlines():
    if line.startswith("dualpath_nodes{") and 'role="decode"' in line:
        print(line.rpartition(" ")[2])
"""
    assert cluster.python("scheduler", code) == "2.0"


def test_it_ends_by_itself_within_its_grace_and_leaves_nothing(cluster: ContainerCluster) -> None:
    cluster.run("--profile", "1p2d", "stop")
    # One that had been killed at the end of its 10 s would show 137.
    ended = {name: entry["ExitCode"] for name, entry in cluster.containers().items()}
    assert ended == dict.fromkeys([*SERVICES, "prepare", "decode-1"], 0)
    cluster.run("--profile", "1p2d", "down", "-v")
    assert cluster.containers() == {}
    assert cluster.run("volumes", "--format", "json").strip() in ("", "[]")
