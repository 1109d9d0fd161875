"""Settings of an index: made from what the user gave, checked against what is stored."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from llama_index.core.prompts import PromptTemplate

from llama_index_contextual.checks import amount
from llama_index_contextual.config import Configuration, load_configuration
from llama_index_contextual.embedding import model_id, resolve_embedding
from llama_index_contextual.errors import FingerprintError, SettingError, StorageError
from llama_index_contextual.index.files import DEFAULT_INCLUDE, SOURCE_INCLUDE, FileRules
from llama_index_contextual.index.pipeline import Difference, NodePipeline, default_parser, differences
from llama_index_contextual.index.state import DEFAULT_NAME, Layout, ManifestDamagedError, load_manifest
from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chromadb.api import ClientAPI
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.readers.base import BaseReader

    from llama_index_contextual.context.base import ContextGenerator
    from llama_index_contextual.index.pipeline import Fingerprint
    from llama_index_contextual.index.state import Manifest


Reindex = Literal["auto", "error", "ignore", "all"]
POLICIES: Final = ("auto", "error", "ignore", "all")
SHARED_LOCK_SECONDS: Final = 60.0  # with a Chroma server the lock is held for moments, so waiting for it is right


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What :meth:`ContextualIndex.open` was given, resolved."""

    folder: Path
    layout: Layout
    embedding: BaseEmbedding
    pipeline: NodePipeline
    files: FileRules
    readers: Mapping[str, BaseReader]
    reindex: Reindex
    lock_timeout: float
    client: ClientAPI | None
    choices: Mapping[str, str]
    configuration: Configuration

    @property
    def shared(self) -> bool:
        """Whether nodes are kept by a Chroma server, where other processes may write at the same time."""
        return self.client is not None

    @property
    def exists(self) -> bool:
        """Whether anything has been indexed yet."""
        return self.layout.manifest.exists() or (self.layout.chroma / "chroma.sqlite3").exists()

    def require_index(self) -> None:
        """Refuse to read an index that does not exist: opening Chroma would make one.

        Raises:
            StorageError: There is none.
        """
        if not self.exists:
            raise StorageError(f"there is no index in {self.layout.root}. Cure: {self.command()}")

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that shapes nodes and vectors."""
        reading = {"readers": {suffix: type(reader).__name__ for suffix, reader in sorted(self.readers.items())}}
        return self.pipeline.fingerprint({"model": model_id(self.embedding)}, reading)

    def command(self, *options: str) -> str:
        """The command line that indexes this folder in this storage, to be pasted into a shell."""
        elsewhere = self.layout.root != self.folder / DEFAULT_NAME
        storage = ["--storage", str(self.layout.root)] if elsewhere else []
        return shlex.join(["llama-index-contextual", "index", str(self.folder), *storage, *options])

    def differences(self, manifest: Manifest) -> list[Difference]:
        """Settings that differ from those an index was made with."""
        return differences(manifest.fingerprint, self.fingerprint.as_dict())

    def other_model(self, manifest: Manifest) -> bool:
        """Whether the vectors of an index are another model's."""
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
            model = ["--embed-model", self.choices["embed_model"]] if "embed_model" in self.choices else []
            raise FingerprintError(
                f"the index in {self.layout.root} was made with the embedding {stored}, not with {given}: "
                "their vectors do not compare. Cure: choose the former, another storage=, or embed everything again: "
                f"reindex='all', or {self.command(*model, '--reindex', 'all')}"
            )
        found = self.differences(manifest)
        if found and self.reindex == "error":
            raise FingerprintError(
                f"the index in {self.layout.root} was made with other settings: {'; '.join(map(str, found))}. "
                "Cure: the former settings, or reindex='auto'."
            )


def resolve_settings(
    folder: str | Path,
    *,
    storage: str | Path | None,
    embed_model: str | BaseEmbedding | None,
    context: str | ContextGenerator | None,
    context_options: dict[str, Any],
    show_context_to_llm: bool | None,
    node_parser: NodeParser | None,
    files: FileRules | None,
    readers: Mapping[str, BaseReader] | None,
    reindex: Reindex,
    lock_timeout: float,
    client: ClientAPI | None,
    config: str | Path | Configuration | Callable[[Path], Configuration] | None,
) -> IndexSettings:
    """Make the settings of an index from what :meth:`ContextualIndex.open` was given, which says what each is.

    Raises:
        SettingError: One is wrong.
    """
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise SettingError(f"folder={str(folder)!r} is no folder. Cure: name one that exists.")
    if reindex not in POLICIES:
        raise SettingError(f"reindex={reindex!r} is not known. Cure: one of {', '.join(map(repr, POLICIES))}.")
    lock_timeout = amount("lock_timeout", lock_timeout, zero=True, endless=True)
    layout = Layout(Path(storage).expanduser().resolve() if storage else root / DEFAULT_NAME)
    if layout.root == root:
        raise SettingError(f"storage={str(storage)!r} is the folder of the documents. Cure: another one, or none.")
    if callable(config):
        said = config(root)
    else:
        said = config if isinstance(config, Configuration) else load_configuration(root, file=config)
    if show_context_to_llm is None:
        show_context_to_llm = bool(said.context.show_to_llm)
    embed_model, context, context_options, choices = _remembered(
        layout.manifest, embed_model or said.embedding.model, context or said.context.mode, context_options, said
    )
    embedding = resolve_embedding(embed_model)
    if context == "llm":  # paid for, so kept with the index
        context_options.setdefault("cache", str(layout.cache))
    contexts = ContextualNodePostprocessor(context, show_context_to_llm=show_context_to_llm, **context_options)
    pipeline = NodePipeline(node_parser or default_parser(embedding, said.chunks.given()), contexts)
    default = FileRules(include=DEFAULT_INCLUDE + SOURCE_INCLUDE) if context == "pattern" else FileRules()
    rules = files or replace(default, **said.files.given())
    return IndexSettings(
        root, layout, embedding, pipeline, rules, dict(readers or {}), reindex, lock_timeout, client, choices, said
    )


def _remembered(
    path: Path,
    embed_model: str | BaseEmbedding | None,
    context: Any,
    options: dict[str, Any],
    configuration: Configuration,
) -> tuple[str | BaseEmbedding, Any, dict[str, Any], dict[str, str]]:
    """Fill in what was not given: what the index was made with, else the defaults.

    Args:
        path: Of the manifest.
        embed_model: As given; None for what the index has.
        context: As given; None for what the index has.
        options: Of the context generator.
        configuration: What it says of the language model comes between the options and what the index has.

    Returns:
        Embedding, context and options to use, and those of them that are strings, to remember.
    """
    try:
        manifest = load_manifest(path)
    except ManifestDamagedError:
        manifest = None
    known = manifest.choices if manifest else {}
    embed_model = embed_model or known.get("embed_model") or "local"
    if context is None:
        context = known.get("context") or "headings"
        if context == "llm" and "llm" in known:
            options = {"llm": known["llm"], **_llm_options(configuration), **options}
    elif context == "llm":
        options = {**_llm_options(configuration), **options}
    given = {"embed_model": embed_model, "context": context, "llm": options.get("llm")}
    return embed_model, context, options, {key: value for key, value in given.items() if isinstance(value, str)}


def _llm_options(configuration: Configuration) -> dict[str, Any]:
    options = configuration.context.llm.given()
    if "prompt" in options:
        options["prompt"] = PromptTemplate(options["prompt"])
    return options


def plain_settings(fingerprint: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A fingerprint as ``section.key`` to value."""
    return {f"{section}.{key}": value for section, values in fingerprint.items() for key, value in values.items()}
