"""What people look at: self-contained HTML pages, light and dark; the same in the terminal and as Markdown.

Everything that comes from documents, questions or models is escaped by the templates, or rendered without any HTML of
its own. A page loads no script or style from elsewhere, and its content security policy lets it load nothing.
"""
