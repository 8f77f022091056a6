"""Python's garbage collector, while times are measured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Python's cycle collector stops the world for as long as there is to look at: leave out what is there already,
    and look seldom at what comes (records, which stay)."""
    before: tuple[Any, ...] = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
