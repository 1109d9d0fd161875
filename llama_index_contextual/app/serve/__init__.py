"""What people and agents are shown: hits, documents, answers; over MCP and as a page on this machine."""
