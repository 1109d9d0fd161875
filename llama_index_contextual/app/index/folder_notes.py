"""The documents of a folder as the tools for agents read them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from llama_index_contextual.tools.notes import Matches, Metadata, Notes, Passage
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import DocumentError

if TYPE_CHECKING:
    from llama_index_contextual.app.index.settings import IndexSettings


class FolderNotes(Notes):
    """The documents of a folder as the tools for agents read them.

    Args:
        settings: The settings of the index.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self._database = settings.database
        self.roots = {
            str(folder).rstrip("/"): f"{name}/" if name else ""
            for name, folder in settings.folders.by_name.items()
        }

    def paths(self) -> list[str]:
        """Return the paths of all documents that can be read, sorted."""
        documents = self._database.documents()
        failed = {key for key, row in documents.items() if row.failed}
        return [file.path for file in self._settings.find_files().files if file.path not in failed]

    def has(self, path: str) -> bool:
        """Return whether there is a file with exactly this path."""
        return any(file.path == path for file in self._settings.find_files(path).files)

    def text(self, path: str) -> str | None:
        """Return the text of a file or of one of its pages; None if it does not exist."""
        file = path
        page = ""
        if not self.has(file):
            file, page = meta.split_page(path)
            if not self.has(file):
                return None
        try:
            documents = self._settings.folder_reader.load(file)
        except DocumentError:  # it was deleted just now, or is not text
            return None
        if page:
            label = page.casefold()
            documents = [
                document
                for document in documents
                if str(document.metadata.get(meta.PAGE_LABEL)).casefold() == label
            ]
        return "\n\n".join(document.text for document in documents) if documents else None

    def metadata(self) -> list[Metadata]:
        """Return the metadata of every chunk, in the order in which chunks were written."""
        if not self._settings.exists:
            return []
        with self._database.reading() as snapshot:  # creating nodes would take four times as long
            written = snapshot.column("metadata", snapshot.rows())
            return [*map(snapshot.metadata_of, written)]

    def matching(self, matches: Matches) -> Iterator[Passage]:
        """Yield the chunks whose text or properties match, in reading order."""
        for _, passages in groupby(self._matching(matches), lambda passage: passage.path):
            yield from sorted(passages, key=lambda passage: passage.place)

    def _matching(self, matches: Matches) -> Iterator[Passage]:
        """Yield the chunks that match, one document after the other."""
        with self._database.reading() as snapshot:
            for text, title, front_matter, written in snapshot.texts():
                # Most chunks have neither a title nor front matter.
                if (
                    matches(text)
                    or (title and matches(title))
                    or (front_matter and matches(front_matter))
                ):
                    yield Passage.of(text, snapshot.metadata_of(written))
