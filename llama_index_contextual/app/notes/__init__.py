"""A folder of notes as agents use it: asked, read and listed."""

from llama_index_contextual.app.notes.folder import By, Listing, Notes, Part, part_of

__all__ = ["Notes", "part_of"]  # what users import
