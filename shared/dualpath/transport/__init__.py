"""One-sided transfers between processes, with the semantics of RDMA verbs."""
