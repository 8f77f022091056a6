"""Fixtures that any test may ask for."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
import structlog

# Before any test: hypothesis' import during the terminal summary, deep in pytest's stack, trips over a recursion
# check of CPython 3.11's parser now and then.
from hypothesis import settings

pytest_plugins = ["tests.support.nats"]

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Before torch is loaded, as in workers: spinning threads of several processes starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that starts the tests in the background has them, and all they start, ignore Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of the real model first, which take longest: else one process ends with them while the other is idle."""
    items.sort(key=lambda item: item.get_closest_marker("smollm2") is None)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that a test runs in this process sends logs to what pytest takes for stderr, and closes after it."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root = logging.getLogger()
        root.handlers[:] = [
            given for given in root.handlers if type(given) is not logging.StreamHandler
        ]
