"""Blocks as objects of an S3-compatible store. Needs the extra `dualpath[s3]`."""
