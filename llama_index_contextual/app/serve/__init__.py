"""What serves an index.

To people on a page, to agents over MCP, and with answers of a language model.
"""
