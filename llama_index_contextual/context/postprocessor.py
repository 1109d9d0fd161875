"""Write contexts into nodes, before the embedding or after a query."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from llama_index.core.bridge.pydantic import (
    BeforeValidator,
    Field,
    field_serializer,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TransformComponent,
)
from llama_index.core.storage.docstore import BaseDocumentStore
from tqdm import tqdm

from llama_index_contextual.context import base, registry, views
from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.postprocessors.hits import checked_hits
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import (
    Checked,
    ContextError,
    ContextualWarning,
    SettingError,
    objects_of,
)
from llama_index_contextual.utils.text import counted, short_hash

if TYPE_CHECKING:
    from llama_index.core.prompts import BasePromptTemplate

    from llama_index_contextual.context.cache import CacheSource
    from llama_index_contextual.context.generators.llm import ModelSource

_LLM_DEFAULTS: Final = {"fallback": "pattern", "batch_size": 8}  # None for the others
# What our parser writes of a chunk's text, and what no longer holds when another step cuts it.
_KEYS_OF_WHOLE_CHUNK: Final = (
    metadata.START_LINE,
    metadata.END_LINE,
    metadata.TOKEN_COUNT,
)


class ContextualNodePostprocessor(Checked, TransformComponent, BaseNodePostprocessor):
    """Write each chunk's context into its metadata, to be embedded and not displayed.

    All other metadata of documents and extractors stays in the views. Only what the context repeats
    (path, file name, title, header path, date) is left out of EMBED.

    In ``transformations=[parser, ContextualNodePostprocessor(), embedding]`` it is the last step
    before the embedding and changes the nodes in place. In ``node_postprocessors=[...]`` it writes
    contexts from headings or patterns, never from a language model, into copies of the nodes that
    have none. A node that has a context keeps it.

    If a splitter cuts the parser's chunks, its pieces inherit the lines of the whole chunk. This
    step removes those lines, so that nothing is cited that a piece does not hold.
    """

    context: str = Field(
        default="headings", description="The name of the generator, or off; see `registry.names`."
    )
    documents: list[BaseNode] | None = Field(
        default=None, exclude=True, description="Whole documents, to find a chunk's own."
    )
    docstore: BaseDocumentStore | None = Field(
        default=None, exclude=True, description="Where else to find them."
    )
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
    generator: base.ContextGenerator | None = Field(
        default=None, description="Made of the context: what makes contexts; None for off."
    )

    def __init__(
        self,
        context: str | base.ContextGenerator | bool | None = "headings",
        *,
        documents: Iterable[BaseNode] | None = None,
        docstore: BaseDocumentStore | None = None,
        root: str | os.PathLike[str] | None = None,
        show_context_to_llm: bool = False,
        descriptions: Mapping[str, str] | None = None,
        llm: ModelSource = None,
        prompt: str | BasePromptTemplate | None = None,
        cache: CacheSource = None,
        fallback: str | None = "pattern",
        batch_size: int = 8,
        num_workers: int | None = None,
        max_calls: int | None = None,
        **options: Any,
    ) -> None:
        """Create the step.

        Args:
            context: ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``, or a generator of your
                own.
            documents: The whole documents, where the nodes are only some of a document's chunks.
            docstore: Where to look for them otherwise; an outdated text in it is noticed and not
                used.
            root: The folder that absolute paths, as ``SimpleDirectoryReader`` gives them, are shown
                relative to. None is the working directory. Of a path outside of it the last two
                parts are shown (``guide/README.md``).
            show_context_to_llm: Whether the prompt of an answering LLM shows the context too.
            descriptions: What folders and files hold, by path: ``{"api/": "REST reference of the
                billing service"}``. Each becomes part of every context below it.
            llm: For ``"llm"``: any LLM of LlamaIndex, or a function that returns one. None takes
                ``Settings.llm``.
            prompt: For ``"llm"``: a text or template with ``{document}`` and after it ``{chunks}``.
            cache: For ``"llm"``: where contexts are kept; a file, a LlamaIndex ``BaseKVStore``, or
                False.
            fallback: For ``"llm"``: what takes the place of a missing context, ``"pattern"`` or
                None.
            batch_size: For ``"llm"``: chunks per call.
            num_workers: For ``"llm"``: calls at a time; 1 for a server on this machine, else 4.
            max_calls: For ``"llm"``: the most requests over all runs.
            **options: Arguments of another generator that ``context`` names, and fields of a
                subclass.

        Raises:
            SettingError: A setting is unknown or cannot work.
        """
        if descriptions is not None and not isinstance(descriptions, Mapping):
            raise SettingError(
                "`descriptions` must be a mapping of paths to texts, such as "
                f"{{'api/': 'REST reference'}} (got {type(descriptions).__name__})."
            )
        fields = {
            "documents": None if documents is None else _document_list(documents),
            "docstore": docstore,
            "root": root,
            "show_context_to_llm": show_context_to_llm,
            "descriptions": dict(descriptions or {}),
        }
        stored = options.pop("generator", None)
        for name in type(self).model_fields.keys() & options.keys():
            fields[name] = options.pop(name)
        options.pop("class_name", None)
        of_llm = {
            "llm": llm,
            "prompt": prompt,
            "cache": cache,
            "fallback": fallback,
            "batch_size": batch_size,
            "num_workers": num_workers,
            "max_calls": max_calls,
        }
        options |= {
            name: value for name, value in of_llm.items() if value != _LLM_DEFAULTS.get(name)
        }

        if isinstance(stored, base.ContextGenerator):
            context = stored
        elif stored is not None:
            context = stored["spec"]
            options = {**stored["options"], **options}
        generator = registry.resolve_generator(context, **options)
        fields["context"] = registry.OFF if generator is None else generator.name
        super().__init__(**fields, generator=generator)

    @field_serializer("generator")
    def _plain_generator(self, generator: base.ContextGenerator | None) -> dict[str, Any] | None:
        # A pipeline of LlamaIndex hashes this to know whether a cached result still holds: the
        # version changes with model and prompt, the state after a run that fell back, so that the
        # next run may do better.
        if generator is None:
            return None
        return {
            "spec": generator.name,
            "options": generator.options(),
            "version": generator.version,
            "state": generator.state(),
        }

    @property
    def fingerprint(self) -> str:
        """Return what the contexts depend on; it changes when stored ones are outdated."""
        if self.generator is None:
            return registry.OFF
        return f"{self.generator.source}@{self._version_of(self.generator)}"

    def _version_of(self, generator: base.ContextGenerator) -> str:
        """Return what is recorded as version: the generator's, with a hash of the descriptions."""
        if not self.descriptions:
            return generator.version
        return f"{generator.version}+{short_hash(sorted(self.descriptions.items()))}"

    @property
    def usage(self) -> base.ContextUsage:
        """Return calls, tokens, chunks and failures so far."""
        return base.ContextUsage() if self.generator is None else self.generator.usage

    def estimate(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None
    ) -> base.ContextEstimate:
        """Return what contexts for these nodes would cost.

        Args:
            nodes: As for a call.
            documents: Whole documents, instead of those of the constructor.
        """
        if self.generator is None:
            return base.ContextEstimate(0)
        return self.generator.estimate(self._outdated(nodes, documents))

    def close(self) -> None:
        """Close the generator's files and connections."""
        if self.generator is not None:
            self.generator.close()

    def __call__(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None, **kwargs: Any
    ) -> list[BaseNode]:
        """Write the contexts into the nodes, in place.

        Args:
            nodes: Chunks of any parser, of any number of documents.
            documents: The whole documents that they were cut from, instead of those of the
                constructor. Without any, a document is put together from its chunks.
            **kwargs: ``show_progress`` is read, and ``progress``, which is called with a
                ``ContextProgress``. What LlamaIndex passes besides is ignored.

        Raises:
            ContextError: A chunk got no context although the generator has no fallback.
        """
        if self.generator is None:
            return self._without_contexts(nodes)
        groups = self._outdated(nodes, documents)
        with _progress(**kwargs) as progress:
            contexts = self.generator.generate_all(groups, progress)
        return self._write_all(self.generator, nodes, groups, contexts)

    async def acall(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None, **kwargs: Any
    ) -> list[BaseNode]:
        """Write the contexts as a call does, without blocking the event loop."""
        if self.generator is None:
            return self._without_contexts(nodes)
        groups = await asyncio.to_thread(self._outdated, nodes, documents)
        with _progress(**kwargs) as progress:
            contexts = await self.generator.agenerate_all(groups, progress)
        return self._write_all(self.generator, nodes, groups, contexts)

    def _without_contexts(self, nodes: Sequence[BaseNode]) -> list[BaseNode]:
        """Remove contexts, and do not embed headings that our parser found."""
        listed = _node_list(nodes)
        with _updating_links(listed):
            for node in listed:
                _remove_outdated_lines(node)
                views.remove_context(node)
                views.hide_headings(node)
        return listed

    def _outdated(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None
    ) -> list[base.DocumentChunks]:
        """Group the nodes that need a context: all of them, if contexts are free."""
        assert self.generator is not None  # noqa: S101
        listed = _node_list(nodes)
        whole = self.documents if documents is None else _document_list(documents)
        groups = group_by_document(listed, documents=whole, docstore=self.docstore, root=self.root)
        if self.generator.free:
            return groups
        current = (self.generator.source, self._version_of(self.generator))
        outdated = []
        for group in groups:
            chunks = tuple(node for node in group.nodes if _made_by(node) != current)
            if chunks:
                outdated.append(base.DocumentChunks(group.document, chunks))
        return outdated

    def _write_all(
        self,
        generator: base.ContextGenerator,
        nodes: Sequence[BaseNode],
        groups: Sequence[base.DocumentChunks],
        contexts: base.Contexts,
    ) -> list[BaseNode]:
        """Write contexts before the embedding, where each chunk has to get one.

        Raises:
            ContextError: A chunk got none.
        """
        embedded = [(node, _context_of(node)) for node in nodes if node.embedding is not None]
        with _updating_links(nodes):
            missing = self._write(generator, nodes, groups, contexts)
        late = sum(_context_of(node) != former for node, former in embedded)
        if late:
            warnings.warn(
                f"{counted(late, 'node')} had a vector before the context was written, so the "
                "vector does not contain it. Put this step before the embedding, and embed again.",
                ContextualWarning,
                stacklevel=3,
            )
        if missing:
            failed = generator.usage.failed
            reasons = f" ({base.in_words(failed)})" if failed else ""
            raise ContextError(
                f"{missing} of {len(nodes)} chunks got no context from {generator.source}, which "
                f"has no fallback{reasons}. The others are kept: run again, or allow a fallback."
            )
        return list(nodes)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], _: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        generator = self.generator and self.generator.at_query_time()
        if generator is None:
            return nodes
        # Write into copies: the retriever's own nodes stay as they are.
        hits = []
        copies = []
        for hit in checked_hits(nodes):
            node = hit.node
            if self.show_context_to_llm or not views.has_context(node.metadata):
                node = node.model_copy(update={"metadata": dict(node.metadata)})
                copies.append(node)
            hits.append(NodeWithScore(node=node, score=hit.score))
        bare = [node for node in copies if not views.has_context(node.metadata)]
        groups = group_by_document(
            bare, documents=self.documents, docstore=self.docstore, root=self.root
        )
        self._write(generator, copies, groups, generator.generate_all(groups))
        return hits

    def _write(
        self,
        generator: base.ContextGenerator,
        nodes: Sequence[BaseNode],
        groups: Sequence[base.DocumentChunks],
        results: base.Contexts,
    ) -> int:
        """Write contexts and set views; return how many contexts are missing."""
        chunks = [node for group in groups for node in group.nodes]
        contexts = [context for group in results for context in group]
        if len(chunks) != len(contexts):
            raise ContextError(
                f"{generator.source} returned {counted(len(contexts), 'context')} for "
                f"{len(chunks)} chunks. Return one for each, in their order; None where there is "
                "none."
            )
        missing = 0
        for node, context in zip(chunks, contexts, strict=True):
            if context is None:
                missing += 1
                continue
            if isinstance(context, str):
                context = base.ChunkContext(context)  # noqa: PLW2901
            text = context.text
            if text:
                path = metadata.path_of(node.metadata)
                text = "\n".join([text, *descriptions_of(self.descriptions, path)])
            made_by = context.made_by or generator
            version = self._version_of(made_by)
            views.write_context(node, text, made_by.source, version, context.lexical)
        for node in nodes:
            _remove_outdated_lines(node)
            views.set_views(
                node,
                show_context_to_llm=self.show_context_to_llm,
                embed_metadata=generator.embeds_metadata,
            )
        return missing


def _remove_outdated_lines(node: BaseNode) -> None:
    """Remove the lines and the counts of a whole chunk from a node that is a piece of it.

    Splitters copy the metadata of what they cut. A piece of it has fewer lines than its range; a
    chunk of the parser never has.
    """
    values = node.metadata
    start_line = metadata.value_of(values, metadata.START_LINE)
    end_line = metadata.value_of(values, metadata.END_LINE)
    is_ours = metadata.is_of_our_parser(values)
    if not is_ours or not isinstance(start_line, int) or not isinstance(end_line, int):
        return
    number_of_lines = 1 + node.get_content(metadata_mode=MetadataMode.NONE).count("\n")
    if number_of_lines <= end_line - start_line:
        for key in _KEYS_OF_WHOLE_CHUNK:
            values.pop(metadata.key_in(values, key), None)


def _made_by(node: BaseNode) -> tuple[str, str]:
    """Return source and version of a node's context."""
    return (
        metadata.value_of(node.metadata, metadata.CONTEXT_SOURCE),
        metadata.value_of(node.metadata, metadata.CONTEXT_VERSION),
    )


def _context_of(node: BaseNode) -> str:
    return metadata.text_value(node.metadata, metadata.CONTEXT)


class _Link(NamedTuple):
    """A link to another node, with the hash that this node had."""

    target: RelatedNodeInfo
    node: BaseNode
    former_hash: str


@contextmanager
def _updating_links(nodes: Sequence[BaseNode]) -> Iterator[None]:
    """Update the hashes in links to nodes that change: a hash covers metadata, and so the context.

    Links without a hash stay so.
    """
    nodes_by_id = {node.node_id: node for node in nodes}
    links: list[_Link] = []
    for node in nodes:
        for related in node.relationships.values():
            targets = related if isinstance(related, list) else [related]  # the children of a node
            for target in targets:
                linked_node = nodes_by_id.get(target.node_id)
                if target.hash and linked_node is not None:
                    links.append(_Link(target, linked_node, linked_node.hash))
    yield
    for link in links:
        if link.node.hash != link.former_hash:
            link.target.hash = link.node.hash


def _node_list(
    nodes: Iterable[BaseNode],
    name: str = "nodes",
    hint: str = "Pass what a node parser returns, or TextNode(text=…).",
) -> list[BaseNode]:
    return objects_of(BaseNode, nodes, name, name, hint)  # type: ignore[type-abstract]


def _document_list(documents: Iterable[BaseNode]) -> list[BaseNode]:
    """Return documents as a list; a single one would be the list of its fields."""
    return _node_list(documents, "documents", "Pass documents=[document].")


@contextmanager
def _progress(
    show_progress: bool = False, progress: base.Progress | None = None, **_: Any
) -> Iterator[base.Progress]:
    """Yield a function that draws progress, or that of the caller."""
    with tqdm(desc="Contexts", unit=" chunks", disable=not show_progress) as bar:

        def draw(counts: base.ContextProgress) -> None:
            bar.total = counts.total
            bar.n = counts.done
            bar.refresh()

        yield progress or draw


def descriptions_of(descriptions: Mapping[str, str], path: str) -> list[str]:
    """Return the descriptions of a file and of the folders that it is in, outermost first.

    Args:
        descriptions: By path of a folder or file, with or without a slash at its end; ``"/"`` is
            the whole folder.
        path: Of the file, relative to the folder of the documents, with ``/``.
    """
    lines = []
    for key, text in sorted((key.strip("/."), text) for key, text in descriptions.items()):
        if not key:
            lines.append(text)
        elif path == key or path.startswith(f"{key}/"):
            lines.append(f"{key}: {text}")
    return lines
