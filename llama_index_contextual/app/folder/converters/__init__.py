"""Converters from document formats to Markdown. Each module declares the formats it reads."""
