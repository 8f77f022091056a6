"""Whole clusters over each back end without shards: the tokens of plain `transformers`, and second turns hit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import StartCluster
from tests.e2e.test_local_cluster import ask, dualpath
from tests.support.cluster import LocalCluster
from tests.support.s3 import S3Server
from tests.support.tokens import Reference, Served

from dualpath.model.tiny import write_tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def draw(tokens: int, number: int) -> list[int]:
    source = random.Random(number)
    return [source.randrange(260, 512) for _ in range(tokens)]


@pytest.fixture(scope="module", params=["directory", "s3"])
def store_settings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    if request.param == "directory":
        yield {"store": "directory", "store_directory": str(tmp_path_factory.mktemp("mount"))}
        return
    server = S3Server(tmp_path_factory.mktemp("s3"))
    options = server.options("e2e")
    yield {
        "store": "s3",
        "store_s3_bucket": options.bucket,
        "store_s3_prefix": options.prefix,
        "store_s3_endpoint": options.endpoint,
        "store_s3_region": options.region,
        "store_s3_access_key": options.access_key,
        "store_s3_secret_key": options.secret_key,
    }
    server.stop()


def test_tokens_are_right_and_second_turns_hit(
    store_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny(directory)
    cluster = LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        model=str(directory),
        dtype="float32",
        read_path="halves",
        chunk_tokens=200,
        done_grace_s=60,
        **store_settings,
    )
    try:
        served = Served(cluster, Reference(directory, draw), "halves")
        assert not [name for name in cluster.pids if name.startswith("storage")]
        for prompt in served.reference.prompts((64, 129, 300)):
            assert served.ask(prompt).hit_tokens == 0
            assert served.ask(prompt).hit_tokens == (len(prompt) - 1) // 64 * 64
        served.converse([f"This is what I say in turn {turn}." for turn in range(3)], eos=False)
        cluster.until_idle()
    finally:
        cluster.stop()
    # Nothing of it is in a log, nor what a process says of itself.
    secret = store_settings.get("store_s3_secret_key", "nothing to look for")
    logs = [cluster.log, *(cluster.home / "logs").iterdir()]
    assert not [path for path in logs if secret in path.read_text(errors="replace")]


def test_another_cluster_on_the_same_store_hits_what_the_first_stored(
    store_settings: dict[str, Any], start_own_cluster: StartCluster, tmp_path: Path
) -> None:
    prompt = "A prompt that nobody else sends. " * 40
    first = start_own_cluster(done_grace_s=60, **store_settings)
    answer = ask(first, prompt).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert first.stop() == 0
    second = start_own_cluster(done_grace_s=60, **store_settings)
    again = ask(second, prompt).json()
    assert again["choices"] == answer["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    second.until_idle()
    assert second.stop() == 0
    config = tmp_path / "store.json"
    config.write_text(json.dumps(store_settings))
    shown = dualpath("store", "stat", "--json", "--config", str(config))
    assert shown.returncode == 0, shown.stderr
    assert sum(space["blocks"] for space in json.loads(shown.stdout)) > 0
    verified = dualpath("store", "verify", "--config", str(config))
    assert (verified.returncode, "0 damaged" in verified.stdout) == (0, True), verified.stderr
    assert dualpath("store", "gc", "--config", str(config)).returncode == 0
    assert dualpath("store", "drop", "--all", "--config", str(config)).returncode == 0
    emptied = dualpath("store", "stat", "--json", "--config", str(config))
    assert json.loads(emptied.stdout) == []
