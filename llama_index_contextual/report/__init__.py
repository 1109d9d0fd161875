"""Pages for the eye: self-contained HTML with no script or style from elsewhere, light and dark.

Everything that comes from documents, questions or models is escaped by the templates. A page's content security policy
lets it load nothing.
"""

from llama_index_contextual.report.pages import chunks_page, hits_page, render

__all__ = ["chunks_page", "hits_page", "render"]
