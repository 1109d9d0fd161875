"""Memory for agents: what notes say about a message, as a digest of a few lines."""
