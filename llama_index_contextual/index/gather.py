"""What a refresh is asked to look at: the folder, a part of it, or documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index.core.schema import Document

from llama_index_contextual.errors import SettingError, StorageError
from llama_index_contextual.index.sources import Source, document_sources, file_sources
from llama_index_contextual.storage.files import Problem, find_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.index.opening import IndexSettings


def gather(
    source: str | Path | Iterable[Document] | None, settings: IndexSettings, failed: list[Problem]
) -> tuple[list[Source], str | None]:
    """What to index, and which part of the folder that covers (None: no part of it).

    Args:
        source: As :meth:`ContextualIndex.refresh` takes it.
        settings: Folder, rules and readers.
        failed: Gets what cannot be read.

    Raises:
        SettingError: The source is outside of the folder, or does not exist.
    """
    if source is not None and not isinstance(source, str | Path):
        return document_sources(source, settings.folder, failed), None
    below = part_of(settings.folder, source)
    rules = replace(settings.files, include=(*settings.files.include, *(f"*{suffix}" for suffix in settings.readers)))
    found = find_files(settings.folder, rules, below=below, exclude=settings.layout.root)
    failed.extend(found.problems)
    return file_sources(found.files, settings.readers, failed), below


def check_source(source: object, folder: Path) -> str | Path | Sequence[Document] | None:
    """Refuse what cannot be indexed before anything is opened or made; gives the source, an iterator as a list.

    Raises:
        SettingError: The source is outside of the folder, does not exist, or holds other things than documents.
        StorageError: The folder is gone.
    """
    if not folder.is_dir():  # not mounted, perhaps: its index must not be emptied, nor the folder made again
        raise StorageError(f"the folder {folder} is no longer there. Cure: put it back, then refresh.")
    if source is None or isinstance(source, str | Path):
        part_of(folder, source)
        return source
    if isinstance(source, Document) or not isinstance(source, Iterable):
        raise SettingError(f"source={type(source).__name__} is no path and no list. Cure: refresh([document]).")
    documents = list(source)
    wrong = next((one for one in documents if not isinstance(one, Document)), None)
    if wrong is not None:
        raise SettingError(f"source holds a {type(wrong).__name__}. Cure: give LlamaIndex Documents, or a path.")
    return documents


def part_of(folder: Path, source: str | Path | None) -> str:
    """A folder or file inside the folder, relative to it; "" is all of it."""
    if source is None:
        return ""
    path = Path(source).expanduser()
    path = path.resolve() if path.is_absolute() else (folder / path).resolve()
    if not path.is_relative_to(folder):
        raise SettingError(f"{source} is outside of {folder}. Cure: open an index for that folder.")
    if not path.exists():
        raise SettingError(f"{source} does not exist. Cure: refresh the folder it was in, and it is forgotten.")
    below = path.relative_to(folder).as_posix()
    return "" if below == "." else below
