"""Structured logs, metrics, and the port that shows them."""
