"""The control plane: NATS."""
