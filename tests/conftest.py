"""Fixtures that any test may ask for."""

# Before any test: its import during the terminal summary, deep in pytest's stack, trips over a recursion
# check of CPython 3.11's parser now and then.
import hypothesis  # noqa: F401

pytest_plugins = ["tests.support.nats"]
