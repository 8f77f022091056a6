"""The load generator: traces of agents, and their replay against any OpenAI-compatible server."""
