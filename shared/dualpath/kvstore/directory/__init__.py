"""Blocks as files of a directory that all nodes mount: 3FS, Lustre, NFS, or a local disk. No process serves it."""
