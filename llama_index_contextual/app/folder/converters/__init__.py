"""Converters of document formats to Markdown; each module declares the formats that it reads."""
