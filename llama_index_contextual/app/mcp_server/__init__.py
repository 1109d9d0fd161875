"""Memory for agents over the Model Context Protocol."""

from llama_index_contextual.app.mcp_server.server import build_server, serve

__all__ = ["build_server", "serve"]
