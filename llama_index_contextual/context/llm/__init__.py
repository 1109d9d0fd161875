"""Contexts from a language model: what it is asked, how it is asked, and what its answers are worth."""
