"""A decode node: holds a request's KV while it is prefilled, reads its share, decodes, stores new blocks."""

from dualpath.decode.node import DecodeNode

__all__ = ["DecodeNode"]
