"""Benchmarks that come with the command: each measures against a reference in the same run."""
