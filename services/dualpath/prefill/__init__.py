"""A prefill node."""
