"""Contexts into nodes: as a transformation before the embedding, or as a postprocessor of what a query found."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from llama_index.core.bridge.pydantic import BeforeValidator, Field, field_serializer
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, TransformComponent
from tqdm import tqdm

from llama_index_contextual.context import base
from llama_index_contextual.context.base import DocumentChunks
from llama_index_contextual.context.registry import OFF, resolve_generator
from llama_index_contextual.context.views import (
    drop_context,
    has_context,
    headings_of_ours,
    put_context,
    set_views,
)
from llama_index_contextual.utils import errors, metadata
from llama_index_contextual.utils import text as normalize
from llama_index_contextual.utils.errors import Checked


class ContextualNodePostprocessor(Checked, TransformComponent, BaseNodePostprocessor):
    """Write each chunk's context into its metadata, where the EMBED view shows it and the displayed text does not.

    All else that the views showed stays in them: what documents brought, and what extractors found. Only what the
    context repeats (path, file name, title, header path, date) is left out of EMBED.

    In ``transformations=[parser, ContextualNodePostprocessor(), embedding]`` it is the last step before the embedding
    and changes the nodes in place. In ``node_postprocessors=[...]`` it gives the nodes of an index that was built
    without contexts free ones (headings or patterns, never an LLM's), on copies. A node that has a context keeps it.

    Args:
        context: ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"`` (see :func:`resolve_generator`), or a generator of
            your own.
        documents: The whole documents, where the nodes are only some of a document's chunks.
        docstore: Where to look for them otherwise; an outdated text in it is noticed and not used.
        root: The folder that absolute paths, as ``SimpleDirectoryReader`` gives them, are shown relative to. None is
            the working directory. Of a path outside of it the last two parts are shown (``guide/README.md``).
        show_context_to_llm: Whether the prompt of an answering LLM shows the context too.
        descriptions: What folders and files hold, by path: ``{"api/": "REST reference of the billing service"}``. Each
            becomes part of every context below it.
        leave_out_keys: Metadata keys that are not embedded beside the context, also those that a later step writes;
            ``"*"`` leaves out all that are there.
        **settings: Those of the kind that ``context`` names, e.g. ``llm=Ollama(model="qwen3:0.6b")`` for ``"llm"``,
            which takes ``Settings.llm`` otherwise; in a subclass also its own fields.

    Raises:
        SettingError: A setting is unknown or cannot work.
    """

    context: str = Field(
        default="headings", description="Which kind of context: off, headings, pattern or llm."
    )
    documents: Any = Field(
        default=None, exclude=True, description="Whole documents, to find a chunk's own."
    )
    docstore: Any = Field(default=None, exclude=True, description="Where else to find them.")
    root: Annotated[
        str | None,
        BeforeValidator(lambda path: os.fspath(path) if isinstance(path, os.PathLike) else path),
    ] = Field(default=None, description="What absolute paths are shown relative to.")
    show_context_to_llm: bool = Field(
        default=False, description="Show the context in the LLM's prompt too."
    )
    descriptions: dict[str, str] = Field(
        default={}, description="What folders and files hold, by path."
    )
    leave_out_keys: tuple[str, ...] = Field(
        default=(), description="Keys that are not embedded beside contexts."
    )
    generator: Any = Field(
        default=None, description="Made of the context: what makes contexts; None for off."
    )

    def __init__(self, context: str | base.ContextGenerator = "headings", **settings: Any) -> None:
        stored = settings.pop("generator", None)  # by to_dict()
        names = set(settings).intersection(type(self).model_fields)
        fields = {name: value for name in names if (value := settings.pop(name)) is not None}
        if stored is not None:
            if not isinstance(stored, dict):
                raise errors.SettingError(
                    f"generator={stored!r} is no setting. Cure: context= takes a generator, too."
                )
            settings = {
                key: stored[key] for key in stored if key not in ("spec", "version", "state")
            }
            context = stored["spec"]
        generator = resolve_generator(context, **settings)
        if "documents" in fields:
            fields["documents"] = _whole(fields["documents"])
        super().__init__(
            context=OFF if generator is None else generator.config()["spec"],
            generator=generator,
            **fields,
        )

    @field_serializer("generator")
    def _plain_generator(self, value: base.ContextGenerator | None) -> dict[str, Any] | None:
        # LlamaIndex's pipeline hashes this to know whether a cached result still holds: the version changes with model
        # and prompt, the state after a run that fell back, so that the next one may do better.
        return (
            None
            if value is None
            else {**value.config(), "version": value.version, "state": value.state()}
        )

    @property
    def fingerprint(self) -> str:
        """What the contexts depend on, in a few characters; changes when a stored index's contexts are outdated."""
        return (
            OFF
            if self.generator is None
            else f"{self.generator.name}@{self.generator.version}{self._mark}"
        )

    @property
    def _mark(self) -> str:
        """What the descriptions add to the version of a context."""
        return (
            f"+{normalize.short_hash(sorted(self.descriptions.items()))}"
            if self.descriptions
            else ""
        )

    @property
    def usage(self) -> base.ContextUsage:
        """Calls, tokens, chunks and failures so far."""
        return base.ContextUsage() if self.generator is None else self.generator.usage

    def estimate(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None
    ) -> base.ContextEstimate:
        """The costs of contexts for these nodes; none is made.

        Args:
            nodes: As for a call.
            documents: Whole documents, instead of those of the constructor.
        """
        if self.generator is None:
            return base.ContextEstimate(0)
        return self.generator.estimate(self._outdated(nodes, documents))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let go of the generator's files, connections and threads."""
        if self.generator is not None:
            self.generator.close()

    def __call__(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None, **kwargs: Any
    ) -> list[BaseNode]:
        """Write the contexts into the nodes, in place.

        Args:
            nodes: Chunks of any parser, of any number of documents.
            documents: The whole documents that they were cut from, instead of those of the constructor. Without any, a
                document is put together from its chunks.
            **kwargs: ``show_progress`` is read, and ``progress``, which is called with a ``ContextProgress``. What
                LlamaIndex passes besides is ignored.

        Raises:
            ContextError: A chunk got no context although the generator that was chosen has no fallback.
        """
        if self.generator is None:
            return self._bare(nodes)
        groups = self._outdated(nodes, documents)
        with _progress(**kwargs) as progress:
            return self._write(nodes, groups, self.generator.generate_all(groups, progress))

    async def acall(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None, **kwargs: Any
    ) -> list[BaseNode]:
        """Write the contexts as a call does, without blocking the event loop."""
        if self.generator is None:
            return self._bare(nodes)
        groups = await asyncio.to_thread(self._outdated, nodes, documents)
        with _progress(**kwargs) as progress:
            return self._write(nodes, groups, await self.generator.agenerate_all(groups, progress))

    def _bare(self, nodes: Sequence[BaseNode]) -> list[BaseNode]:
        """Nodes without contexts and without headings of our parser in what is embedded."""
        for node in nodes:
            drop_context(node.metadata)
            set_views(node, leave_out_keys=headings_of_ours(node.metadata))
        return list(nodes)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], _: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        generator = None if self.generator is None else self.generator.at_query_time()
        if generator is None:
            return nodes
        shown = self.show_context_to_llm
        changed = [hit for hit in nodes if shown or not has_context(hit.node.metadata)]
        # On copies: the nodes of the retriever stay as they are.
        copies = {
            id(hit): hit.node.model_copy(update={"metadata": dict(hit.node.metadata)})
            for hit in changed
        }
        bare = [node for node in copies.values() if not has_context(node.metadata)]
        groups = base.group_by_document(
            bare, documents=self.documents, docstore=self.docstore, root=self.root
        )
        self._write([*copies.values()], groups, generator.generate_all(groups), required=False)
        return [NodeWithScore(node=copies.get(id(hit), hit.node), score=hit.score) for hit in nodes]

    def _outdated(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None
    ) -> list[DocumentChunks]:
        """Group the nodes that need a context: a paid one is kept while generator and version are the same."""
        whole = self.documents if documents is None else _whole(documents)
        groups = base.group_by_document(
            nodes, documents=whole, docstore=self.docstore, root=self.root
        )
        if self.generator.free:
            return groups
        current = (self.generator.name, f"{self.generator.version}{self._mark}")
        keys = metadata.CONTEXT_SOURCE, metadata.CONTEXT_VERSION

        def is_outdated(node: BaseNode) -> bool:
            return tuple(metadata.value_of(node.metadata, key) for key in keys) != current

        outdated = [
            DocumentChunks(group.document, tuple(filter(is_outdated, group.nodes)))
            for group in groups
        ]
        return [group for group in outdated if group.nodes]

    def _write(
        self,
        nodes: Sequence[BaseNode],
        groups: Sequence[DocumentChunks],
        results: base.Contexts,
        *,
        required: bool = True,  # while a query waits, a chunk without a context is better than none
    ) -> list[BaseNode]:
        missing, late, mark = 0, 0, self._mark
        chunks = [node for group in groups for node in group.nodes]
        contexts = [context for group in results for context in group]
        if len(chunks) != len(contexts):
            cure = "Cure: one for each, in their order; None where there is none."
            raise errors.ContextError(
                f"{self.generator.name} made {len(contexts)} contexts for {len(chunks)} chunks. {cure}"
            )
        for node, context in zip(chunks, contexts, strict=True):
            if context is None:
                missing += 1
                continue
            about = (
                descriptions_of(self.descriptions, metadata.path_of(node.metadata))
                if context.text
                else []
            )
            text, former = (
                "\n".join([context.text, *about]),
                metadata.value_of(node.metadata, metadata.CONTEXT),
            )
            late += node.embedding is not None and (former or "") != text
            put_context(
                node.metadata, text, context.source, f"{context.version}{mark}", context.lexical
            )
        for node in nodes:
            set_views(
                node,
                show_context_to_llm=self.show_context_to_llm,
                leave_out_keys=self.leave_out_keys,
            )
        if late and required:
            what = f"{normalize.counted(late, 'node')} had a vector before the context came, and it does not know that"
            cure = "Cure: the step before the embedding, and the embedding again."
            warnings.warn(f"{what}. {cure}", errors.ContextualWarning, stacklevel=3)
        if missing and required:
            why = f" ({base.in_words(failed)})" if (failed := self.generator.usage.failed) else ""
            what = f"{missing} of {len(nodes)} chunks got no context from {self.generator.name}, and it has no fallback"
            cure = "What was finished is kept. Cure: run again, or allow a fallback."
            raise errors.ContextError(f"{what}{why}. {cure}")
        return list(nodes)


def _whole(documents: Any) -> list[BaseNode]:
    """Whole documents as a list; a single one would be the list of its fields."""
    whole = list(documents) if isinstance(documents, Iterable) else [documents]
    if not all(isinstance(document, BaseNode) for document in whole):
        cure = "is no list of documents. Cure: documents=[document], as loaded."
        raise errors.SettingError(f"documents={type(documents).__name__} {cure}")
    return whole


@contextmanager
def _progress(
    show_progress: bool = False, progress: base.Progress | None = None, **_: Any
) -> Iterator[base.Progress]:
    """A callable that draws progress, or the one of the caller."""
    with tqdm(desc="Contexts", unit=" chunks", disable=not show_progress) as bar:

        def draw(counts: base.ContextProgress) -> None:
            bar.total, bar.n = counts.total, counts.done
            bar.refresh()

        yield progress or draw


def descriptions_of(descriptions: Mapping[str, str], path: str) -> list[str]:
    """The descriptions of a file and of the folders that it is in, as ``api: REST reference``, outermost first.

    Args:
        descriptions: By path of a folder or file, with or without a slash at its end; ``"/"`` is the whole folder.
        path: Of the file, relative to the folder of the documents, with ``/``.
    """
    known = sorted((key.strip("/."), text) for key, text in descriptions.items())
    return [
        f"{key}: {text}" if key else text
        for key, text in known
        if not key or path == key or path.startswith(f"{key}/")
    ]
