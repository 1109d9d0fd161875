"""A folder of documents: which files are read, as what, and how each format becomes Markdown."""
