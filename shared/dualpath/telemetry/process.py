"""How a service process runs: its event loop, its signals, its exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import uvloop

from dualpath.telemetry.logs import get_logger

log = get_logger(__name__)


class ServiceError(Exception):
    """Why a service cannot run; the text says all, no traceback is logged."""


def run_service(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `main(stop)` on uvloop until it returns. It must return soon after `stop` is set.

    SIGTERM and SIGINT set `stop`; a second one ends the process at once with 128 + signal. An exception
    out of `main` is logged as one sentence and ends the process with exit code 1 (SystemExit).
    """
    try:
        uvloop.run(_run(main))
    except ServiceError as error:
        log.error("service failed", reason=str(error))
        raise SystemExit(1) from None
    except Exception as error:
        # The last place where it can be told.
        log.error("service failed", reason=f"{type(error).__name__}: {error}", exc_info=error)
        raise SystemExit(1) from None


def keep_pauses_short() -> None:
    """For a process whose event loop must never be late: what is in memory now is no garbage, and no collection need
    look through it (30 ms, for what a gateway has loaded); threads that compute let the loop in after 1 ms, not 5."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(0.001)


async def _run(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            log.warning("second signal: exiting at once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        log.info("stopping", signal=signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await main(stop)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
