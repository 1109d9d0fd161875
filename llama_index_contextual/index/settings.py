"""Settings of an index, checked against what is stored and written down beside it."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from llama_index_contextual.embedding import NoEmbedding, model_id
from llama_index_contextual.errors import FingerprintError, StorageError
from llama_index_contextual.index.manifest import PAID, Choices
from llama_index_contextual.index.pipeline import Difference, NodePipeline, differences
from llama_index_contextual.index.places import EMBEDDED, is_kept_in, place_of
from llama_index_contextual.index.recipe import sealed
from llama_index_contextual.index.state import DEFAULT_NAME, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.readers.base import BaseReader

    from llama_index_contextual.config import Configuration
    from llama_index_contextual.index.files import FileRules
    from llama_index_contextual.index.manifest import Manifest
    from llama_index_contextual.index.pipeline import Fingerprint
    from llama_index_contextual.index.store import Place
    from llama_index_contextual.shared_store import SharedStore


Reindex = Literal["auto", "error", "ignore", "all"]
POLICIES: Final = ("auto", "error", "ignore", "all")
EXACT_LIMIT: Final = 100_000  # vectors, which a question is compared with in 8 ms
SHARED_LOCK_SECONDS: Final = 60.0  # with a server the lock is held for moments, so waiting for it is right


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What :meth:`ContextualIndex.open` was given, completed by the configuration, the index's own, and defaults."""

    folder: Path
    layout: Layout
    embedding: BaseEmbedding
    pipeline: NodePipeline
    files: FileRules
    readers: Mapping[str, BaseReader]
    reindex: Reindex
    lock_timeout: float
    place: Place
    remembered: Remembered
    configuration: Configuration
    shared_cache: SharedStore | None = None

    @property
    def shared(self) -> bool:
        """Return whether nodes are kept by a server, where other processes may write at the same time."""
        return self.place.shared

    @property
    def exact_limit(self) -> int:
        """Return the most chunks of which every vector is compared with a question."""
        said = self.configuration.store.exact_limit
        if isinstance(self.embedding, NoEmbedding):
            return 0
        return EXACT_LIMIT if said is None else said

    @property
    def exists(self) -> bool:
        """Return whether anything has been indexed yet."""
        return self.layout.manifest.exists() or self.place.exists()

    def require_index(self) -> None:
        """Refuse to read an index that does not exist: opening Chroma would make one.

        Raises:
            StorageError: There is none.
        """
        if not self.exists:
            raise StorageError(f"there is no index in {self.layout.root}. Cure: {self.command()}")

    def kept_in(self, place: Place) -> IndexSettings:
        """Return the settings of the same index in another place."""
        self.remembered.remember_place(place)
        return replace(self, place=place)

    @property
    def fingerprint(self) -> Fingerprint:
        """Return everything that shapes nodes and vectors, and which files are read."""
        reading = {"readers": {suffix: type(reader).__name__ for suffix, reader in sorted(self.readers.items())}}
        files = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.files).items()}
        return self.pipeline.fingerprint({"model": model_id(self.embedding)}, reading, files)

    def command(self, *options: str, name: str = "index") -> str:
        """Return the command line that indexes this folder in this storage, to be pasted into a shell."""
        elsewhere = self.layout.root != self.folder / DEFAULT_NAME
        storage = ["--storage", str(self.layout.root)] if elsewhere else []
        return shlex.join(["llama-index-contextual", name, str(self.folder), *storage, *options])

    def differences(self, manifest: Manifest) -> list[Difference]:
        """Return the settings that differ from those an index was made with."""
        return differences(manifest.fingerprint, self.fingerprint.to_dict())

    def other_model(self, manifest: Manifest) -> bool:
        """Return whether the vectors of an index are another model's."""
        stored = manifest.fingerprint.get("embedding") or {}
        return bool(stored) and stored != self.fingerprint.embedding

    def check(self, manifest: Manifest) -> None:
        """Refuse settings that do not fit an index.

        Raises:
            FingerprintError: The embedding model is another one, or anything is and ``reindex="error"``.
        """
        if self.reindex in ("auto", "error") and self.other_model(manifest):
            stored, given = manifest.fingerprint["embedding"]["model"], self.fingerprint.embedding["model"]
            # Without a model the command would take the former one.
            chosen = self.remembered.choices.get("embed_model")
            model = ["--embed-model", chosen] if chosen else []
            raise FingerprintError(
                f"the index in {self.layout.root} was made with the embedding {stored}, not with {given}: "
                "their vectors do not compare. Cure: choose the former, another storage=, or embed everything again: "
                f"reindex='all', or {self.command(*model, '--reindex', 'all')}"
            )
        self.check_place(manifest)
        found = self.differences(manifest)
        if found and self.reindex == "error":
            raise FingerprintError(
                f"the index in {self.layout.root} was made with other settings: {'; '.join(map(str, found))}. "
                "Cure: the former settings, or reindex='auto'."
            )

    def check_place(self, manifest: Manifest) -> None:
        """Refuse to look for an index where it is not.

        Raises:
            FingerprintError: It is kept elsewhere.
        """
        if manifest.fingerprint and not is_kept_in(manifest, self.place.name):
            there = place_of(manifest) or "an object that was given as vector_store="
            here = self.place.name
            move = (
                f"; or bring it over, which embeds nothing: {self.command('--to', here, name='move')}" if here else ""
            )
            raise FingerprintError(
                f"the index in {self.layout.root} is kept in {there}, not in {self.place.name or 'what was given'}. "
                f"Cure: open it with the former, or choose another storage= for an index there{move}"
            )
        if self.place.name != EMBEDDED and not self.place.among([manifest.collection]):
            raise FingerprintError(
                f"the index in {self.layout.root} is kept in the collection {manifest.collection!r}, not in "
                f"{self.place.collection!r}. Cure: name the former at the end of the address, as #NAME; if the index "
                f"is not yours, another storage=."
            )

    def check_writing(self, manifest: Manifest) -> None:
        """Refuse to write an index without the settings that made it.

        Raises:
            FingerprintError: One could not be written down and is not given now, or the embedding is another one.
        """
        if self.remembered.refused:
            raise FingerprintError(
                f"the index in {self.layout.root} was made with settings that count only from you "
                f"({', '.join(self.remembered.refused)}), and it is not known to be yours: a refresh would make "
                f"everything again with others. Cure: {self.command(name='trust')}, or give them again."
            )
        missing = self.remembered.missing
        if missing:
            names = " and ".join(missing)
            raise FingerprintError(
                f"the index in {self.layout.root} was made with a setting that cannot be written down ({names}: an "
                "object of your own, a lambda, or a class that cannot be imported), and was opened without it: a "
                f"refresh would make everything again with another one. Cure: ContextualIndex.open(…, {missing[0]}=…)"
            )
        if self.reindex == "ignore" and self.other_model(manifest):
            raise FingerprintError(
                f"the index in {self.layout.root} holds the vectors of another embedding, and new ones would not "
                "compare. Cure: open it with the former embedding, or with reindex='all'."
            )

    def pays_again(self, manifest: Manifest) -> bool:
        """Return whether contexts that a language model made are to be made again, by another model or prompt."""
        former = str((manifest.fingerprint.get("context") or {}).get("generator", ""))
        paid = self.pipeline.paid_source is not None and former.startswith(PAID)
        return paid and former != self.pipeline.contexts.fingerprint

    def assumed(self) -> str:
        """Return a warning that the settings of the index are lost, with those that stand in for them."""
        parser = self.fingerprint.parser
        chunks = f"chunks of up to {parser['chunk_size']} tokens" if "chunk_size" in parser else parser["class"]
        files = " ".join(self.files.include) if "files" in self.remembered.choices else "of the usual kinds"
        return (
            f"the settings that made the index were in {self.layout.manifest}, and are lost. Those of this command, of "
            f"contextual.toml and the defaults are taken now: {chunks}, contexts {self.pipeline.contexts.context!r}, "
            f"files {files}. Cure: if you had given others, give them again, or write them into contextual.toml; what "
            "was embedded or paid for is not again."
        )

    def written_in(self, manifest: Manifest) -> Manifest:
        """Return a manifest that says what the index is made with from now on."""
        made = replace(
            manifest,
            fingerprint=self.fingerprint.to_dict(),
            choices=self.remembered.choices.copy(),
            unremembered=list(self.remembered.unremembered),
            folder=str(self.folder),
        )
        return sealed(made, self.layout.root)


@dataclass(slots=True)
class Remembered:
    """What of the settings is written down.

    Attributes:
        choices: As the manifest keeps it.
        unremembered: Names of settings that cannot be written down.
        missing: Those of them that the index was made with and that were not given now.
        refused: What a manifest says that is not known to be this user's, and that was not given now.
        lost: Whether there is a store, and nothing that says what was given when it was made.
    """

    choices: Choices = field(default_factory=Choices)
    unremembered: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    lost: bool = False

    def remember_place(self, place: Place) -> None:
        """Write down where the index is kept, in place of what was."""
        self.choices.pop("vector_store", None)
        self.unremembered = [name for name in self.unremembered if name != "vector_store"]
        if place.name == "":
            self.unremembered.append("vector_store")
        elif place.name != EMBEDDED:
            self.choices["vector_store"] = place.name


def plain_settings(fingerprint: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a fingerprint as ``section.key`` to value."""
    return {f"{section}.{key}": value for section, values in fingerprint.items() for key, value in values.items()}
