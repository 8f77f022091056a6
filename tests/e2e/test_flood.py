"""A flood of requests while the NATS server is killed and comes back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.cluster import LocalCluster, until

CLIENTS, TURNS = 12, 8


def answer_of(cluster: LocalCluster, prompt: str) -> str:
    """As clients do: come back when told to. Raises where an answer is neither right nor a reason to."""
    while True:
        response = httpx.post(
            f"{cluster.base_url}/completions",
            json={
                "model": cluster.model, "prompt": prompt, "max_tokens": 48, "temperature": 0,
                "ignore_eos": True,
            },
            timeout=60,
        )  # fmt: skip
        if response.status_code != 503:
            assert response.status_code == 200, response.text
            text: str = response.json()["choices"][0]["text"]
            return text
        assert response.headers["retry-after"]


@pytest.mark.slow
def test_every_request_of_a_flood_is_answered_though_the_bus_goes_away(
    start_own_cluster: StartCluster,
) -> None:
    cluster = start_own_cluster(prefill=2, decode=2)
    prompts = [f"Client {number} says: " + "word " * 60 for number in range(CLIENTS)]
    expected = [answer_of(cluster, prompt) for prompt in prompts]
    answered = threading.Semaphore(0)

    def client(number: int) -> list[str]:
        texts = []
        for _ in range(TURNS):
            texts.append(answer_of(cluster, prompts[number]))
            answered.release()
        return texts

    with ThreadPoolExecutor(CLIENTS) as pool:
        runs = [pool.submit(client, number) for number in range(CLIENTS)]
        for _ in range(CLIENTS):
            assert answered.acquire(timeout=60)
        cluster.kill("nats")
        until(lambda: "✗ nats" in cluster.output(), "the loss is told")
        cluster.restart("nats")
        assert [run.result(120) for run in runs] == [[text] * TURNS for text in expected]
    cluster.until_idle()
