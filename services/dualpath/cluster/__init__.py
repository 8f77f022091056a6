"""A local cluster: start, watch, stop its processes."""
