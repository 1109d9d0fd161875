"""What people look at: self-contained HTML pages, light and dark; the same in the terminal and as Markdown.

Everything that comes from documents, questions or models is escaped by the templates. A page loads no script or style
from elsewhere, and its content security policy lets it load nothing.
"""

from llama_index_contextual.report.chunks import chunk_panel, chunk_views, chunks_page
from llama_index_contextual.report.pages import hits_page, render
from llama_index_contextual.report.tables import Table

__all__ = ["Table", "chunk_panel", "chunk_views", "chunks_page", "hits_page", "render"]
