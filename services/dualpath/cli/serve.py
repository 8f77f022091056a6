"""`dualpath serve`: one process of a cluster, from its settings to its exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from dualpath.bus import BusError
from dualpath.cli.seat import Seat
from dualpath.kvstore.making import require_s3
from dualpath.kvstore.shards import parse_shard
from dualpath.model.errors import ModelError
from dualpath.settings import Settings, load_settings
from dualpath.telemetry.logs import configure_logging
from dualpath.telemetry.process import ServiceError, run_service
from dualpath.telemetry.tracing import TracingError, close_tracing, configure_tracing
from dualpath.transport.tls import Tls

Role = Callable[[Seat, asyncio.Event], Awaitable[None]]


def serve(
    role: str,
    name: str,
    *,
    config: Path | None,
    port: int | None,
    http_port: int,
    ready_fd: int | None,
) -> int:
    """Run the service until SIGTERM or SIGINT. `ready_fd` is a pipe into which it says, once, that it is
    ready. Exit code 2: asked for wrongly; SystemExit(1): failed, as the log says."""
    try:
        run = _role(role)
        settings = load_settings(config)
        _check(role, name, settings)
    except ValueError as error:
        print(f"dualpath: {error}", file=sys.stderr)
        return 2
    configure_logging(name, fmt=settings.log_format, level=settings.log_level)

    def ready(words: object) -> None:
        if ready_fd is not None:
            # A supervisor that is stopping already does not listen any more.
            with suppress(BrokenPipeError):
                os.write(ready_fd, msgspec.json.encode(words))
            os.close(ready_fd)

    seat = Seat(name, settings, settings.port if port is None else port, http_port, ready)

    async def main(stop: asyncio.Event) -> None:
        try:
            configure_tracing(role, name, settings.otel_endpoint)
            await run(seat, stop)
        except (ModelError, BusError, TracingError, OSError) as error:
            raise ServiceError(str(error)) from error
        finally:
            await asyncio.to_thread(close_tracing)

    run_service(main)
    return 0


def _role(role: str) -> Role:
    """Only the chosen role's packages are loaded: a gateway process has no torch."""
    match role:
        case "storage":
            from dualpath.cli.roles.storage import serve_storage

            return serve_storage
        case "scheduler":
            from dualpath.cli.roles.scheduler import serve_scheduler

            return serve_scheduler
        case "prefill" | "decode":
            from dualpath.cli.roles.worker import serve_decode, serve_prefill

            return serve_prefill if role == "prefill" else serve_decode
        case "gateway":
            from dualpath.cli.roles.gateway import serve_gateway

            return serve_gateway
        case _:
            raise ValueError(
                f"{role!r} is no role; use storage, scheduler, prefill, decode or gateway"
            )


def _check(role: str, name: str, settings: Settings) -> None:
    """What `dualpath up` sets by itself. Raises ValueError."""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise ValueError(f"name {name!r} may have letters, digits, - and _ only")
    if settings.secret is None:
        raise ValueError(
            "secret is not set; give all processes of a cluster the same (DUALPATH_SECRET, or the "
            "settings file)"
        )
    if role != "scheduler" and settings.announced_host in ("0.0.0.0", "::"):
        raise ValueError(
            f"peers cannot dial {settings.announced_host}; set announce to an address or a name of this "
            "machine, or host to one of its addresses"
        )
    if settings.tls and settings.tls_certificate is None:
        raise ValueError(
            "tls is on, but tls_certificate, tls_key and tls_ca are not set; only `dualpath up` makes them"
        )
    Tls.of(settings)
    for text in settings.shard_addresses:
        parse_shard(text)
    if role == "storage":
        if settings.store != "shards":
            raise ValueError(f"store is {settings.store}, which has no storage shards")
        return
    if settings.nats_url is None:
        raise ValueError("nats_url is not set; say where the NATS server is, nats://HOST:PORT")
    if settings.store == "s3":
        require_s3()
    if settings.store == "shards" and role != "scheduler" and not settings.shard_addresses:
        raise ValueError("shard_addresses is not set; list the storage shards as NAME=HOST:PORT")
