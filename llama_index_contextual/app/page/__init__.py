"""A page on this machine: search while typing, the documents beside the hits, answers, and questions of one's own."""

from llama_index_contextual.app.page.server import DEFAULT_PORT, serve

__all__ = ["DEFAULT_PORT", "serve"]
