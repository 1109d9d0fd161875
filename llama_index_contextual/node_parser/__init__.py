"""The node parser that splits Markdown along its headings."""

from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser

__all__ = ["HeadingAwareMarkdownNodeParser"]
