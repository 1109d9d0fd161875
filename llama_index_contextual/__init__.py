"""Contextual retrieval for LlamaIndex: give every chunk its context back, and find it again."""
