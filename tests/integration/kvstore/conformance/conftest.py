"""Every back end of the store: the tests of this directory run on all. A new one adds itself to BACK_ENDS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.back_ends import BackEnd, DirectoryBackEnd, S3BackEnd, ShardsBackEnd
from tests.support.s3 import S3Server

from dualpath.kvstore.api import BlockStore

SIZE = 10_000

MakeStore = Callable[[int], Awaitable[BlockStore]]

BACK_ENDS = (
    "one-shard",
    "three-shards",
    "two-copies",
    "directory",
    pytest.param("s3", marks=pytest.mark.slow),
)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(params=BACK_ENDS)
async def back_end(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackEnd]:
    async with AsyncExitStack() as stack:
        match request.param:
            case "one-shard":
                yield ShardsBackEnd(tmp_path, stack, count=1, replicas=1)
            case "three-shards":
                yield ShardsBackEnd(tmp_path, stack, count=3, replicas=1)
            case "two-copies":
                yield ShardsBackEnd(tmp_path, stack, count=3, replicas=2)
            case "directory":
                yield DirectoryBackEnd(tmp_path, stack)
            case _:
                yield S3BackEnd(tmp_path, stack, request.getfixturevalue("s3_server"))


@pytest.fixture
def make_store(back_end: BackEnd) -> MakeStore:
    """Makes a client of the back end for blocks of a size."""
    return back_end.client


@pytest.fixture
async def store(back_end: BackEnd) -> BlockStore:
    return await back_end.client(SIZE)
