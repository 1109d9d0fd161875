"""Files that are no text become Markdown, in a process of its own that has nothing of LlamaIndex."""
