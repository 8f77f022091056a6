"""Structured logs, Prometheus metrics, the operators' port, and how processes run and end."""
