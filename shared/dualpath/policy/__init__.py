"""Decisions: who gets this request, over which path it is read, what enters the next batch. Pure."""
