"""Folders of documents: which files to read, and the conversion of their formats to Markdown."""
