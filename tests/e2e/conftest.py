"""Whole clusters for end-to-end tests.

`cluster` is shared by the session: one prefill and one decode node of synthetic engines. Do not break it. A test
module that needs another shape, or breaks things, makes its own:

    @pytest.fixture(scope="module")
    def cluster(start_cluster: StartCluster) -> LocalCluster:
        return start_cluster(prefill=2, snic_bandwidth="20MB/s")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from tests.support.cluster import LocalCluster


class StartCluster(Protocol):
    """Starts a small synthetic cluster; any setting can be given."""

    def __call__(self, **settings: Any) -> LocalCluster: ...


def _starter(factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    running: list[LocalCluster] = []

    def start(**settings: Any) -> LocalCluster:
        running.append(LocalCluster(factory.mktemp("cluster"), **settings))
        return running[-1]

    yield start
    for cluster in running:
        cluster.stop()


@pytest.fixture(scope="module")
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    """Starts clusters that live until the module's last test has run."""
    yield from _starter(tmp_path_factory)


@pytest.fixture
def start_own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    """Starts clusters that live as long as one test."""
    yield from _starter(tmp_path_factory)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One synthetic cluster for all tests that leave it as it was."""
    running = LocalCluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.stop()
