"""Requests that schemathesis makes up out of the OpenAPI document, against a real cluster: none is a 5xx."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest
from tests.support.cluster import LocalCluster


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_made_up_request_is_answered_with_a_5xx(cluster: LocalCluster) -> None:
    root = cluster.base_url.removesuffix("/v1")
    ended = subprocess.run(
        [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run",
         f"{root}/openapi.json", "--checks", "not_a_server_error", "--max-examples", "8",
         "--exclude-path", "/metrics", "--seed", "1", "--no-color"],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    refused = httpx.get(f"{root}/metrics").text
    assert 'dualpath_events_total{event="http_400"}' in refused
    cluster.until_idle(30.0)
