"""The node parser: spans of Markdown become LlamaIndex nodes with headings, lines, a day and an id."""

from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser, usual_size

__all__ = ["HeadingAwareMarkdownNodeParser", "usual_size"]
