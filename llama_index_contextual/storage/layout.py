"""Where things lie in a storage folder.

::

    .contextual/
      manifest.json     what is indexed, made from what; replaced atomically, written last
      building.json     the same of an index that is being made to replace it
      generation        a number that grows with every write, so that readers notice
      chroma/           the nodes, their texts and vectors: the truth
      vectors.sqlite3   vectors by hash of their text; a cache
      bm25/             the keyword index, derived; a cache
      write.lock        held by the process that writes, for as long as it does
      chroma.lock       held while Chroma's files change, and while a reader opens them
      .gitignore        keeps the folder out of version control
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_NAME: Final = ".contextual"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one storage folder."""

    root: Path

    @property
    def manifest(self) -> Path:
        """The manifest."""
        return self.root / "manifest.json"

    @property
    def building(self) -> Path:
        """The manifest of an index that is being made to replace this one."""
        return self.root / "building.json"

    @property
    def generation(self) -> Path:
        """The generation stamp."""
        return self.root / "generation"

    @property
    def chroma(self) -> Path:
        """Chroma's folder."""
        return self.root / "chroma"

    @property
    def vectors(self) -> Path:
        """The vector cache."""
        return self.root / "vectors.sqlite3"

    @property
    def contexts(self) -> Path:
        """The cache of contexts that were paid for."""
        return self.root / "contexts.sqlite3"

    @property
    def bm25(self) -> Path:
        """The persisted keyword index."""
        return self.root / "bm25"

    @property
    def bm25_lock(self) -> Path:
        """Held by whoever writes the persisted keyword index."""
        return self.root / "bm25.lock"

    @property
    def chroma_lock(self) -> Path:
        """The lock that keeps a reader from opening Chroma's files while they change."""
        return self.root / "chroma.lock"

    @property
    def lock(self) -> Path:
        """The write lock."""
        return self.root / "write.lock"

    def create(self) -> None:
        """Make the folder, and keep it out of version control."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            ignore = self.root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("# Made by llama-index-contextual; everything here can be made again.\n*\n", "utf-8")
        except OSError as error:
            raise StorageError(
                f"the index cannot be kept in {self.root} ({error.strerror}). Cure: make it writable, or choose "
                "another folder with storage=."
            ) from error
