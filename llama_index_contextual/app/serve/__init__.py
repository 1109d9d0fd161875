"""What serves an index: to people on a page, to agents over MCP, and with answers of a language model."""
