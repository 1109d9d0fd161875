"""A folder of notes as agents use it: asked, read, added to, corrected, and filled from their transcripts."""

from llama_index_contextual.notes.commands import MemoryCommands
from llama_index_contextual.notes.folder import Notes
from llama_index_contextual.notes.importing import FORMATS, ImportReport, import_transcripts

__all__ = ["FORMATS", "ImportReport", "MemoryCommands", "Notes", "import_transcripts"]
