"""Fixtures that any test may ask for."""

from hypothesis import settings

pytest_plugins = ["tests.support.nats"]

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
