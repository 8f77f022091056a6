"""The gateway: an OpenAI-compatible front that owns each request from start to end."""
