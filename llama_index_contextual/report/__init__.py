"""What people look at: self-contained HTML pages, light and dark; the same in the terminal and as Markdown.

Everything that comes from documents, questions or models is escaped by the templates, or rendered without any HTML of
its own. A page loads no script or style from elsewhere, and its content security policy lets it load nothing.
"""

from llama_index_contextual.report.markdown import Marker, rendered
from llama_index_contextual.report.pages import (
    Table,
    chunk_panel,
    chunk_views,
    chunks_page,
    framed,
    node_html,
    render,
)

__all__ = [
    "Marker",
    "Table",
    "chunk_panel",
    "chunk_views",
    "chunks_page",
    "framed",
    "node_html",
    "render",
    "rendered",
]
