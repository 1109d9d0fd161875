"""Serve an index to people on a page, to agents over MCP, and with a language model."""
