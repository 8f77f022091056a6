"""What experiments are made of: workloads, the systems that are compared, bounds, and gates of validity. Pure."""
