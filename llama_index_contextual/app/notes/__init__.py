"""A folder of notes as agents use it: asked, read, added to, corrected, and filled from their transcripts."""

from llama_index_contextual.app.notes.commands import MemoryCommands
from llama_index_contextual.app.notes.folder import By, Listing, Notes, Part, part_of
from llama_index_contextual.app.notes.importing import FORMATS, ImportReport, import_transcripts
from llama_index_contextual.app.notes.links import Link, Related, related

__all__ = [  # what users import
    "FORMATS",
    "ImportReport",
    "Link",
    "MemoryCommands",
    "Notes",
    "Related",
    "import_transcripts",
    "part_of",
    "related",
]
