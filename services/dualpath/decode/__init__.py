"""A decode node."""
