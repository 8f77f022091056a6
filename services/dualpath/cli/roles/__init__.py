"""One module per role: how its service is put together, and run until it is told to stop."""
