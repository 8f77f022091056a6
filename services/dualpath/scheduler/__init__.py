"""The central scheduler: queues, placement, read paths, liveness."""
