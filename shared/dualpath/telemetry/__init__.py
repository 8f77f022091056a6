"""Structured logs, Prometheus metrics, the /metrics and /health port, and how processes run and end."""
