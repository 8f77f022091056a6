"""A storage shard."""
