"""The KV store as its users see it: match, read, write Full Blocks by key."""
