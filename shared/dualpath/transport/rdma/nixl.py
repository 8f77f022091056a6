"""NIXL, the library that moves the bytes. No other module imports it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from dualpath.memory.device import HOST, Place
from dualpath.telemetry.process import ServiceError
from dualpath.transport.rdma.extents import Extent

MODULE = "nixl_cu12"
_QUIET = {"NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_LEVEL": "fatal"}
"""What goes wrong on a link is told by the link, in a sentence."""


class NoRdma(ServiceError):
    """There can be no transfers by RDMA in this process; the text says what to do."""


class NixlError(Exception):
    """NIXL refused or failed."""


@cache
def load() -> tuple[Any, tuple[type[Exception], ...]]:
    """NIXL and the errors that it raises. Takes half a second the first time. Raises NoRdma."""
    for variable, level in _QUIET.items():
        os.environ.setdefault(variable, level)
    try:
        module = importlib.import_module(MODULE)
        bindings = importlib.import_module(f"{MODULE}._bindings")
    except ImportError as error:
        raise NoRdma(
            f"transport is rdma, but NIXL cannot be loaded ({error}): run pip install 'dualpath[rdma]', "
            "or set transport to tcp"
        ) from error
    errors = (getattr(bindings, name) for name in dir(bindings) if name.startswith("nixl"))
    return module, tuple(e for e in errors if isinstance(e, type) and issubclass(e, Exception))


@cache
def try_out(config: str) -> None:
    """Make an agent with this configuration, and destroy it; once. The first agent of a process takes half a second,
    none after it does. Raises NoRdma."""
    try:
        Agent("trial", config).close()
    except NixlError as error:
        raise NoRdma(
            f"UCX has nothing to move bytes with ({error}); are the rdma_devices right? UCX_LOG_LEVEL=info "
            "in the environment makes it say more"
        ) from error


class Agent:
    """A NIXL agent with the UCX back end, and its one peer. Without threads: it makes progress when asked.

    `config` is UCX's, as NAME=VALUE joined by commas; all memory of an agent is in `place`. Raises NixlError from
    every method.
    """

    def __init__(self, name: str, config: str, place: Place = HOST) -> None:
        module, self._errors = load()
        settings = module.nixl_agent_config(enable_prog_thread=False, backends=[])
        try:
            self._agent = module.nixl_agent(name, settings)
            self._agent.create_backend("UCX", {"engine_config": config})
        except self._errors as error:
            raise NixlError(f"no agent with {config}: {error}") from error
        self._place = place
        self._peer = b""
        self._peer_place = HOST

    def register(self, extent: Extent) -> None:
        """Let the NIC reach this memory. It must stay mapped as long as the agent lives."""
        try:
            self._agent.register_memory([(*extent, self._place.device, "")], self._place.kind)
        except self._errors as error:
            raise NixlError(f"{extent[1]} bytes of memory cannot be registered: {error}") from error

    def metadata(self) -> bytes:
        """What a peer needs to write into the memory that is registered so far."""
        return bytes(self._agent.get_agent_metadata())

    def meet(self, metadata: bytes, place: Place = HOST) -> None:
        """Take the peer's metadata, or what has been added to it; its memory is in `place`."""
        self._peer_place = place
        try:
            self._peer = self._agent.add_remote_agent(metadata)
        except self._errors as error:
            raise NixlError(f"the peer's agent cannot be read: {error}") from error

    def post(self, local: Sequence[Extent], remote: Sequence[Extent]) -> Any:
        """Begin to write; the pieces have pairwise the same lengths. Returns a handle for `done`, `release`."""
        agent = self._agent
        try:
            handle = agent.initialize_xfer(
                "WRITE",
                self._described(local, self._place),
                self._described(remote, self._peer_place),
                self._peer,
            )
            if agent.transfer(handle) == "ERR":
                raise NixlError("a transfer could not be begun")
        except self._errors as error:
            raise NixlError(f"a transfer could not be begun: {error}") from error
        return handle

    def _described(self, extents: Sequence[Extent], place: Place) -> Any:
        return self._agent.get_xfer_descs(
            [(*extent, place.device) for extent in extents], place.kind
        )

    def done(self, handle: Any) -> bool:
        """Whether all bytes are in the peer's memory."""
        try:
            state = self._agent.check_xfer_state(handle)
        except self._errors as error:
            raise NixlError(f"a transfer failed: {error}") from error
        if state == "ERR":
            raise NixlError("a transfer failed")
        return bool(state == "DONE")

    def release(self, handle: Any) -> None:
        """Forget a transfer. One that has not ended may go on until `close`."""
        try:
            handle.release()
        except self._errors as error:
            raise NixlError(f"a transfer cannot be given up: {error}") from error

    def progress(self) -> None:
        """Let transfers of either direction advance, where the fabric needs the CPU for that."""
        try:
            self._agent.get_new_notifs()
        except self._errors as error:
            raise NixlError(f"no progress: {error}") from error

    def close(self) -> None:
        """Destroy the agent, its connections and registrations: afterwards no NIC and no peer reads or writes
        memory through it. Handles must have been given to `release`, or be dropped."""
        del self._agent
