"""A prefill node: reads its share of a request, prefills it layer by layer, hands it to a decode node."""

from dualpath.prefill.node import PrefillNode

__all__ = ["PrefillNode"]
