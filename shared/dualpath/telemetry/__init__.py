"""Structured logs, Prometheus metrics, the /metrics and /health port, and the run of a process."""
