"""What goes wrong with models."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be served, or cannot go on; the text says what was found and what to do."""
