"""Endpoints on real sockets, and regions to write to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest

from dualpath.lanes import PacedNic
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

SECRET = b"the cluster's secret"


class Bytes:
    """A region over one piece of memory; `imms` are what its writes carried."""

    def __init__(self, nbytes: int) -> None:
        self.memory = bytearray(nbytes)
        self.imms: list[int] = []

    @property
    def nbytes(self) -> int:
        return len(self.memory)

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        return [memoryview(self.memory)[offset : offset + nbytes]]

    def on_write(self, imm: int) -> None:
        self.imms.append(imm)


class Scattered(Bytes):
    """The same bytes in pieces of `stride`, the odd ones from another array."""

    def __init__(self, nbytes: int, stride: int) -> None:
        super().__init__(nbytes)
        self.stride = stride
        self.other = bytearray(nbytes)

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        pieces = []
        end = offset + nbytes
        while offset < end:
            number, within = divmod(offset, self.stride)
            size = min(self.stride - within, end - offset)
            home = self.other if number % 2 else self.memory
            pieces.append(memoryview(home)[offset : offset + size])
            offset += size
        return pieces

    def content(self) -> bytes:
        return b"".join(self.resolve(0, self.nbytes))


Received = list[tuple[Address, bytes]]


class Make(Protocol):
    async def __call__(
        self, endpoint_id: str, on_message: Any = None, **options: Any
    ) -> TcpEndpoint: ...


async def ignore(peer: Address, message: bytes) -> None:
    """A handler that takes everything."""


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes started endpoints that are closed at the end."""
    async with AsyncExitStack() as stack:

        async def build(
            endpoint_id: str,
            on_message: Callable[[Address, bytes], Awaitable[None]] | None = None,
            **options: Any,
        ) -> TcpEndpoint:
            options = {
                "host": "127.0.0.1",
                "secret": SECRET,
                "nic": PacedNic(endpoint_id),
                **options,
            }
            endpoint = TcpEndpoint(endpoint_id, **options)
            await endpoint.start(on_message or ignore)
            stack.push_async_callback(endpoint.close)
            return endpoint

        yield build
