"""Settings of an index, checked against what is stored and written down beside it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from llama_index_contextual.app.folder.formats import suffix_of
from llama_index_contextual.app.index.pipeline import NodePipeline, differences, nodes_hash, parser_settings
from llama_index_contextual.app.settings.embeddings import model_id
from llama_index_contextual.app.settings.loading import USER_FILE, user_folder
from llama_index_contextual.app.store.locking import DEFAULT_NAME, Layout, WriteLock
from llama_index_contextual.errors import DamagedError, FingerprintError, StorageError
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.app.folder.folders import Folders
    from llama_index_contextual.app.folder.sources import Reading
    from llama_index_contextual.app.settings.schema import Configuration
    from llama_index_contextual.app.store.database import Database
    from llama_index_contextual.app.store.paid import PaidStore
    from llama_index_contextual.app.store.schema import IndexState


Reindex = Literal["auto", "error", "ignore", "all"]
PAID: Final = "llm:"  # how the source of a context begins that was paid for


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What :meth:`ContextualIndex.open` was given, completed by the configuration, the index's own, and defaults."""

    reading: Reading
    layout: Layout
    embedding: BaseEmbedding
    pipeline: NodePipeline
    reindex: Reindex
    lock_timeout: float
    database: Database
    paid: PaidStore
    remembered: Remembered
    configuration: Configuration

    def state(self) -> IndexState:
        """State of the whole index; see :meth:`Database.state`."""
        return self.database.state()

    @property
    def exists(self) -> bool:
        """Return whether anything has been indexed yet; it has where the database is damaged."""
        try:
            return bool(self.state().settings)
        except DamagedError:
            return True

    def require_index(self, state: IndexState | None = None) -> None:
        """Refuse to read an index that does not exist.

        Args:
            state: What is true of it, where that was read already.

        Raises:
            StorageError: There is none, or its folder is gone with it.
        """
        if (state or self.state()).settings:
            return
        if writer := WriteLock(self.layout.lock).other_writer():
            raise StorageError(
                f"there is nothing to ask yet in {self.database.name}: {writer} makes the index. Cure: wait a moment."
            )
        if Layout(folder := self.folders.root).database.is_file():
            raise StorageError(
                f"{folder} is where an index is kept, and no folder of documents. Cure: --storage {folder} "
                "(storage= in Python) in place of the folder."
            )
        if self.folders.missing_folders_message:
            raise StorageError(f"{self.folders.missing_folders_message}, nor is its index. Cure: put it back.")
        raise StorageError(f"there is no index in {self.database.name}. Cure: {self.command()}")

    @property
    def folders(self) -> Folders:
        """The documents."""
        return self.reading.folders

    @property
    def made_with(self) -> Callable[[str], str]:
        """Function of a path or id that gives the hash of all that makes the nodes of that document.

        That is the settings of today, and what converts the document.
        """
        nodes, readers, mark_of = nodes_hash(self.fingerprint), self.reading.readers, self.reading.converter.mark

        def made_with(key: str) -> str:
            mark = "" if readers and suffix_of(key) in readers else mark_of(key)
            return short_hash([nodes, mark]) if mark else nodes

        return made_with

    @property
    def fingerprint(self) -> dict[str, dict[str, Any]]:
        """Return everything that shapes nodes and vectors, and which files are read, by section.

        ``parser``: class and settings. ``context``: name and version of the generator; the version is a hash of its
        prompt, model and settings. ``embedding``: the model. ``reading``: what turns files into documents.
        """
        contexts = self.pipeline.contexts
        return {
            "parser": parser_settings(self.pipeline.parser),
            "context": {
                "generator": contexts.fingerprint,
                "show_to_llm": contexts.show_context_to_llm,
                **{name: list(keys) for name, keys in contexts.key_lists().items() if keys},
            },
            "embedding": {"model": model_id(self.embedding)},
            "reading": {
                "readers": {suffix: type(reader).__name__ for suffix, reader in sorted(self.reading.readers.items())}
            },
            "files": {name: list(value) if isinstance(value, tuple) else value for name, value in self.reading.rules},
        }

    def command(self, *options: str, name: str = "index") -> str:
        """Return the command line that indexes this folder in this storage, to be pasted into a shell."""
        return command_line(name, self.folders, self.layout, *options)

    def differences(self, state: IndexState) -> list[str]:
        """Return the settings that differ from those an index was made with."""
        return differences(state.settings, self.fingerprint)

    def other_model(self, state: IndexState) -> bool:
        """Return whether the vectors of an index are another model's."""
        stored = state.settings.get("embedding") or {}
        return bool(stored) and stored != self.fingerprint["embedding"]

    def check(self, state: IndexState) -> None:
        """Refuse settings that do not fit an index.

        Raises:
            FingerprintError: The embedding model is another one, or anything is and ``reindex="error"``.
        """
        if self.reindex in ("auto", "error") and self.other_model(state):
            # Without a model the command would take the former one.
            name = self.remembered.choices.get("embed_model")
            model = ["--embed-model", name] if name else []
            raise FingerprintError(
                f"the index in {self.layout.root} was made with the embedding {state.model}, not with "
                f"{model_id(self.embedding)}: their vectors do not compare. Cure: choose the former, another storage "
                f"folder, or embed everything again: reindex='all' in Python, or "
                f"{self.command(*model, '--yes')}"
            )
        changes = self.differences(state)
        if changes and self.reindex == "error":
            raise FingerprintError(
                f"the index in {self.layout.root} was made with other settings: {'; '.join(changes)}. "
                "Cure: the former settings, or reindex='auto'."
            )

    def check_writing(self, state: IndexState) -> None:
        """Refuse to write an index without the settings that made it.

        Raises:
            FingerprintError: An object that made it is not given now, or the embedding is another one.
        """
        if self.remembered.refused:
            raise FingerprintError(
                f"the index in {self.layout.root} was made with settings that count only from you "
                f"({', '.join(self.remembered.refused)}): a refresh would make everything again with others. Cure: set "
                f'them again, by options or under [folders."{self.folders.root}"] in {user_folder() / USER_FILE}.'
            )
        missing = self.remembered.missing
        if missing:
            arguments = {key.rpartition(".")[2]: kind for key, kind in missing.items()}
            raise FingerprintError(
                f"the index in {self.layout.root} was made with objects of Python, which are not written down "
                f"({', '.join(map('='.join, arguments.items()))}), and was opened without them: a refresh would make "
                f"everything again with others. Cure: ContextualIndex.open(…, {'=…, '.join(arguments)}=…)"
            )
        if self.reindex == "ignore" and self.other_model(state):
            raise FingerprintError(
                f"the index in {self.layout.root} holds the vectors of another embedding, and new ones would not "
                "compare. Cure: open it with the former embedding, or with reindex='all'."
            )

    def pays_again(self, state: IndexState) -> bool:
        """Return whether contexts that a language model made are to be made again, by another model or prompt."""
        former = str((state.settings.get("context") or {}).get("generator", ""))
        paid = self.pipeline.paid_source is not None and former.startswith(PAID)
        return paid and former != self.pipeline.contexts.fingerprint

    def written_in(self, state: IndexState) -> IndexState:
        """Return a state that says what the index is made with from now on."""
        choices, objects = self.remembered.choices.copy(), self.remembered.objects.copy()
        folder = "" if self.folders.collections else str(self.folders.root)
        return replace(state, settings=self.fingerprint, choices=choices, objects=objects, folder=folder)


def command_line(name: str, folders: Folders, layout: Layout, *options: str) -> str:
    """Return a command over an index, to be pasted into a shell."""
    folder = [] if folders.collections else [str(folders.root)]
    storage = [] if layout.root == folders.root / DEFAULT_NAME else ["--storage", str(layout.root)]
    return shlex.join(["llama-index-contextual", name, *folder, *storage, *options])


@dataclass(slots=True)
class Remembered:
    """What of the settings is written down, and what that lacks.

    Attributes:
        choices: Plain settings, by their keys.
        objects: The classes of objects, by argument.
        missing: Those of the objects that the index was made with and that were not given now.
        refused: Settings that made the index, that count only from the user, and that are not set now.
    """

    choices: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
