"""The `dualpath` command."""
