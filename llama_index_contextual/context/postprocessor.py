"""A step that writes contexts into nodes, either before embedding or after retrieval."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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

_LLM_DEFAULTS = {"fallback": "pattern", "batch_size": 8}  # None for the other options
# Facts about a chunk's text that our parser records. They become wrong when another step splits the
# chunk.
_KEYS_OF_WHOLE_CHUNK = (
    metadata.START_LINE,
    metadata.END_LINE,
    metadata.TOKEN_COUNT,
)


class ContextualNodePostprocessor(Checked, TransformComponent, BaseNodePostprocessor):
    """Write each chunk's context into its metadata, where it is embedded but not displayed.

    All other metadata stays in the EMBED and LLM views. Only values that the context repeats (path,
    file name, title, header path, date) are left out of EMBED.

    In ``transformations=[parser, ContextualNodePostprocessor(), embedding]``, it is the last step
    before the embedding and changes the nodes in place. In ``node_postprocessors=[...]``, it adds
    contexts to copies of the nodes that have none. These contexts come from headings or patterns,
    never from a language model.

    If a splitter splits the parser's chunks, the pieces inherit the line numbers of the whole
    chunk. This step removes those numbers, so that citations never point to lines outside a piece.
    """

    context: str = Field(
        default="headings", description="The name of the generator, or off. See `registry.names`."
    )
    documents: list[BaseNode] | None = Field(
        default=None, exclude=True, description="The whole documents of the chunks."
    )
    docstore: BaseDocumentStore | None = Field(
        default=None, exclude=True, description="A docstore to look up other documents in."
    )
    root: Annotated[
        str | None,
        BeforeValidator(lambda path: os.fspath(path) if isinstance(path, os.PathLike) else path),
    ] = Field(default=None, description="The folder that absolute paths are shown relative to.")
    show_context_to_llm: bool = Field(
        default=False, description="Show the context in the LLM's prompt, too."
    )
    descriptions: dict[str, str] = Field(
        default={}, description="Descriptions of folders and files, by path."
    )
    generator: base.ContextGenerator | None = Field(
        default=None, description="The generator that `context` names; None for off."
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
            context: ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``, or your own generator.
            documents: The whole documents. They are needed if the nodes are only some of the chunks
                of a document.
            docstore: Where to look up documents that are not in ``documents``. Outdated texts in it
                are detected and ignored.
            root: The folder that absolute paths, such as those of ``SimpleDirectoryReader``, are
                shown relative to. None means the working directory. Paths outside it are shortened
                to their last two parts (``guide/README.md``).
            show_context_to_llm: Whether the prompt of the LLM that answers questions also contains
                the context.
            descriptions: Descriptions of folders and files, by path: ``{"api/": "REST reference of
                the billing service"}``. Each is added to the contexts of all files under its path.
            llm: For ``"llm"``: any LlamaIndex LLM, or a function that returns one. None means
                ``Settings.llm``.
            prompt: For ``"llm"``: a text or template that contains ``{document}`` and, after it,
                ``{chunks}``.
            cache: For ``"llm"``: where contexts are stored. A file, a LlamaIndex ``BaseKVStore``,
                or False for no cache.
            fallback: For ``"llm"``: the replacement for a missing context, ``"pattern"`` or None.
            batch_size: For ``"llm"``: chunks per call.
            num_workers: For ``"llm"``: concurrent calls. The default is 1 for a server on this
                machine and 4 otherwise.
            max_calls: For ``"llm"``: the maximum number of requests over all runs.
            **options: Arguments of any other generator that ``context`` names, and fields of a
                subclass.

        Raises:
            SettingError: A setting is unknown or has an invalid value.
        """
        if descriptions is not None and not isinstance(descriptions, Mapping):
            raise SettingError(
                "`descriptions` must be a mapping of paths to texts, such as "
                f"{{'api/': 'REST reference'}} (got {type(descriptions).__name__})."
            )

        # Collect the fields of this class and of a subclass.
        fields = {
            "documents": None if documents is None else _document_list(documents),
            "docstore": docstore,
            "root": root,
            "show_context_to_llm": show_context_to_llm,
            "descriptions": dict(descriptions or {}),
        }
        stored_generator = options.pop("generator", None)
        for name in type(self).model_fields.keys() & options.keys():
            fields[name] = options.pop(name)
        options.pop("class_name", None)

        # Collect the options of the generator.
        llm_options = {
            "llm": llm,
            "prompt": prompt,
            "cache": cache,
            "fallback": fallback,
            "batch_size": batch_size,
            "num_workers": num_workers,
            "max_calls": max_calls,
        }
        options |= {
            name: value for name, value in llm_options.items() if value != _LLM_DEFAULTS.get(name)
        }

        # Create the generator. LlamaIndex passes the field itself, or what to_dict() stored of it.
        if isinstance(stored_generator, base.ContextGenerator):
            context = stored_generator
        elif stored_generator is not None:
            context = stored_generator["spec"]
            options = {**stored_generator["options"], **options}
        generator = registry.resolve_generator(context, **options)
        fields["context"] = registry.OFF if generator is None else generator.name
        super().__init__(**fields, generator=generator)

    @field_serializer("generator")
    def _plain_generator(self, generator: base.ContextGenerator | None) -> dict[str, Any] | None:
        # A LlamaIndex pipeline hashes this to decide whether a cached result is still valid. The
        # version changes with the model and the prompt. The state changes after a run that used the
        # fallback, so that the next run tries again.
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
        """Return a text that changes whenever stored contexts become outdated."""
        if self.generator is None:
            return registry.OFF
        return f"{self.generator.source}@{self._version_of(self.generator)}"

    def _version_of(self, generator: base.ContextGenerator) -> str:
        """Return the version to record: the generator's, with a hash of the descriptions."""
        if not self.descriptions:
            return generator.version
        return f"{generator.version}+{short_hash(sorted(self.descriptions.items()))}"

    @property
    def usage(self) -> base.ContextUsage:
        """Return the calls, tokens, chunks and failures so far."""
        return base.ContextUsage() if self.generator is None else self.generator.usage

    def estimate(
        self, nodes: Sequence[BaseNode], documents: Iterable[BaseNode] | None = None
    ) -> base.ContextEstimate:
        """Return the cost of contexts for these nodes.

        Args:
            nodes: The nodes, as for a call.
            documents: The whole documents, in place of those of the constructor.
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
            documents: The whole documents that the chunks come from, in place of those of the
                constructor. If there are none, each document is assembled from its chunks.
            **kwargs: ``show_progress``, and ``progress``, a function that is called with a
                ``ContextProgress``. Other arguments from LlamaIndex are ignored.

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
        """Write the contexts like a call, but without blocking the event loop."""
        if self.generator is None:
            return self._without_contexts(nodes)
        groups = await asyncio.to_thread(self._outdated, nodes, documents)
        with _progress(**kwargs) as progress:
            contexts = await self.generator.agenerate_all(groups, progress)
        return self._write_all(self.generator, nodes, groups, contexts)

    def _without_contexts(self, nodes: Sequence[BaseNode]) -> list[BaseNode]:
        """Remove contexts, and exclude our parser's header paths from embedding."""
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
        """Group the nodes that need a context, which are all of them if contexts are free."""
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
        """Write contexts before embedding, when each chunk must get one.

        Raises:
            ContextError: A chunk got none.
        """
        embedded = [(node, _context_of(node)) for node in nodes if node.embedding is not None]
        with _updating_links(nodes):
            missing = self._write(generator, nodes, groups, contexts)
        outdated = sum(_context_of(node) != former for node, former in embedded)
        if outdated:
            warnings.warn(
                f"{counted(outdated, 'node')} had a vector before the context was written, so the "
                "vector does not contain it. Put this step before the embedding, and embed again.",
                ContextualWarning,
                stacklevel=3,
            )
        if missing:
            failed = generator.usage.failed
            reasons = f" ({base.in_words(failed)})" if failed else ""
            raise ContextError(
                f"{missing} of {len(nodes)} chunks got no context from {generator.source}, which "
                f"has no fallback{reasons}. The other contexts are kept. Run again, or allow a "
                "fallback."
            )
        return list(nodes)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], _: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        generator = self.generator and self.generator.at_query_time()
        if generator is None:
            return nodes
        # Write into copies, so that the retriever's own nodes do not change.
        hits = []
        copies = []
        for hit in checked_hits(nodes):
            node = hit.node
            if self.show_context_to_llm or not views.has_context(node.metadata):
                node = node.model_copy(update={"metadata": dict(node.metadata)})
                copies.append(node)
            hits.append(NodeWithScore(node=node, score=hit.score))
        without_context = [node for node in copies if not views.has_context(node.metadata)]
        groups = group_by_document(
            without_context, documents=self.documents, docstore=self.docstore, root=self.root
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
        """Write contexts and set views, and return the number of missing contexts."""
        chunks = [node for group in groups for node in group.nodes]
        contexts = [context for group in results for context in group]
        if len(chunks) != len(contexts):
            raise ContextError(
                f"{generator.source} returned {counted(len(contexts), 'context')} for "
                f"{len(chunks)} chunks. Return one per chunk, in the same order, and None for a "
                "chunk without a context."
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
    """Remove a chunk's line numbers and token count from a node that is only a piece of it.

    Splitters copy the metadata of the node that they split, so a piece has fewer lines than its
    line range. A chunk of our parser never has fewer.
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
    """Return the source and the version of a node's context."""
    return (
        metadata.value_of(node.metadata, metadata.CONTEXT_SOURCE),
        metadata.value_of(node.metadata, metadata.CONTEXT_VERSION),
    )


def _context_of(node: BaseNode) -> str:
    return metadata.text_value(node.metadata, metadata.CONTEXT)


class _Link(NamedTuple):
    """A relationship to another node, with the hash of that node before it changes."""

    target: RelatedNodeInfo
    node: BaseNode
    former_hash: str


@contextmanager
def _updating_links(nodes: Sequence[BaseNode]) -> Iterator[None]:
    """Update the node hashes in relationships, because a hash covers the context, too.

    Relationships without a hash stay without one.
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
    hint: str = "Pass the nodes of a node parser, or TextNode(text=…).",
) -> list[BaseNode]:
    return objects_of(BaseNode, nodes, name, name, hint)  # type: ignore[type-abstract]


def _document_list(documents: Iterable[BaseNode]) -> list[BaseNode]:
    """Return documents as a list. A single document is refused: iterating it yields its fields."""
    return _node_list(documents, "documents", "Pass documents=[document].")


@contextmanager
def _progress(
    show_progress: bool = False, progress: base.Progress | None = None, **_: Any
) -> Iterator[base.Progress]:
    """Yield the caller's progress function, or one that draws a progress bar."""
    with tqdm(desc="Contexts", unit=" chunks", disable=not show_progress) as bar:

        def draw(counts: base.ContextProgress) -> None:
            bar.total = counts.total
            bar.n = counts.done
            bar.refresh()

        yield progress or draw


def descriptions_of(descriptions: Mapping[str, str], path: str) -> list[str]:
    """Return the descriptions of a file and of the folders that contain it, outermost first.

    Args:
        descriptions: Descriptions by the path of a folder or file. A slash at its end is optional,
            and ``"/"`` is the whole folder.
        path: The path of the file, relative to the folder of the documents and with ``/``.
    """
    lines = []
    for key, text in sorted((key.strip("/."), text) for key, text in descriptions.items()):
        if not key:
            lines.append(text)
        elif path == key or path.startswith(f"{key}/"):
            lines.append(f"{key}: {text}")
    return lines
