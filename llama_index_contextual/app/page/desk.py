"""What the page shows: hits, documents with their chunks, answers."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from llama_index.core.schema import MetadataMode

from llama_index_contextual import metadata
from llama_index_contextual.app.answering import NOTHING, CitedSynthesizer
from llama_index_contextual.app.index import explained
from llama_index_contextual.app.notes import part_of
from llama_index_contextual.app.preview import chunk_views
from llama_index_contextual.app.report.pages import Marker, node_html, render
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.app.settings.local import E5Embedding, LocalEmbedding
from llama_index_contextual.errors import ContextualError, DocumentError, SettingError
from llama_index_contextual.memory import note_filters
from llama_index_contextual.retrieval import hit_views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llama_index.core.llms import LLM
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.retrieval import Explanation


_HITS: Final = 10
_SOURCES: Final = 5
_BANDS: Final = 300  # chunks of a document that are shown at once
_MOST_CHARS: Final = 2000  # of a question
_MOST_CHOICES: Final = 200  # folders, and tags
_LOOK_SECONDS: Final = 0.3
_FREE: Final = (LocalEmbedding, E5Embedding, NoEmbedding)  # asked at every letter; others when a question is whole


def address(path: str) -> str:
    """Return the link that the page opens a document by."""
    return f"#path={quote(path)}"


class Desk:
    """An open index, as the page asks it. Every method may be called by several threads.

    Args:
        index: The index; it is only read.
        llm: Answers; None where nobody does.
    """

    def __init__(self, index: ContextualIndex, llm: str | LLM | None = None) -> None:
        self._index = index
        self._writer = None if llm is None else CitedSynthesizer(llm)
        self._choices: tuple[int, dict[str, Any]] = (-1, {})

    def state(self) -> dict[str, Any]:
        """Return what the index holds, how far it is behind its folder, and what can be chosen from."""
        index, state = self._index, self._index.settings.state()
        documents, fresh = index.documents(), index.freshness(_LOOK_SECONDS)
        files = max(len(documents) + fresh.changed, 1)
        facts = {
            "name": ", ".join(index.collections) or index.folder.name,
            "documents": len(documents),
            "chunks": sum(document.nodes for document in documents.values()),
            "note": "" if state.complete else "being indexed, or a refresh was cut off",
            "share": None if state.complete else round(min(1.0, len(documents) / files), 3),
            "llm": "" if self._writer is None else self._writer.name,
            "instant": isinstance(index.settings.embedding, _FREE),
        }
        if state.complete and fresh:
            facts["note"] = str(fresh)
        if self._choices[0] != state.change:
            self._choices = state.change, self._chosen_from(list(documents))
        return {**facts, **self._choices[1]}

    def _chosen_from(self, paths: list[str]) -> dict[str, Any]:
        """Return folders and tags, those of most documents or chunks first, and the first and last day."""
        folders = Counter(f"{parent}/" for path in paths for parent in PurePosixPath(path).parents if parent.name)
        tags = Counter(
            tag.strip().lstrip("#")
            for key in (metadata.TAGS, metadata.INLINE_TAGS)
            for value in self._index.values(key)
            if value
            for tag in str(value).split(",")
        )
        days = sorted({str(day)[:10] for day in self._index.values(metadata.DATE) if day})
        return {
            "folders": sorted(name for name, _ in folders.most_common(_MOST_CHOICES)),
            "tags": sorted(name for name, _ in tags.most_common(_MOST_CHOICES) if name),
            "days": [days[0], days[-1]] if days else [],
        }

    def search(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """Return the hits of a question as HTML.

        Args:
            fields: ``q``, and ``folder``, ``tag``, ``since`` and ``until`` where they narrow it.
        """
        explanation = self._ask(fields, _HITS)
        return {"html": self._html(explanation), "count": len(explanation)}

    def answer(self, fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the sources of an answer as HTML, then its sentences, then what went wrong if anything did."""
        try:
            if self._writer is None:
                raise SettingError("no language model is set. Cure: serve --llm MODEL")
            explanation = self._ask(fields, _SOURCES)
            yield {"html": self._html(explanation), "count": len(explanation)}
            sources = [hit.node.node.get_content(MetadataMode.LLM) for hit in explanation]
            for sentence in self._writer.sentences(fields["q"], sources):
                yield {"sentence": sentence.to_dict()} if sources else {"error": NOTHING}
        except ContextualError as error:
            yield {"error": str(error)}

    def _ask(self, fields: Mapping[str, str], most: int) -> Explanation:
        question = str(fields.get("q") or "").strip()
        if not question or len(question) > _MOST_CHARS:
            raise SettingError(f"the question has {len(question)} characters. Cure: 1 to {_MOST_CHARS}")
        narrowed = {key: str(fields.get(key) or "") for key in ("tag", "since", "until")}
        filters = note_filters(path=str(fields.get("folder") or ""), **narrowed)
        return explained(self._index, question, most, filters)

    def _html(self, explanation: Explanation) -> str:
        return render("found.html", hits=list(hit_views(explanation, address)), warnings=explanation.remarks)

    def document(self, path: str, node_id: str = "") -> dict[str, Any]:
        """Return an indexed document as HTML, each chunk a band that has its lines.

        Args:
            path: Of the document, or what a note calls it: ``[[Name#Heading]]``.
            node_id: A chunk that is to be seen; of a long document those around it are shown.

        Raises:
            DocumentError: There is none of this path.
        """
        section: dict[str, int] = {}
        if path.startswith("[["):
            note = part_of(self._index, path)
            path, section = note.path, {"first": note.from_line, "last": note.to_line} if note.extent else {}
        nodes = self._nodes(path)
        at = next((place for place, node in enumerate(nodes) if node.node_id == node_id or _starts(node, section)), 0)
        start = max(0, min(at - _BANDS // 2, len(nodes) - _BANDS))
        band, chunks = nodes[start : start + _BANDS], []
        for chunk in chunk_views(band):
            first, last = (chunk.values.get(key) for key in (metadata.START_LINE, metadata.END_LINE))
            page = metadata.page_path(".", chunk.node.metadata.get(metadata.PAGE_LABEL)).removeprefix(".#")
            lines = page if page != "." else f"L{first}–{last}" if first else ""
            html = node_html(chunk.node, Marker(), address, chunk.text)
            chunks.append({"id": chunk.node.node_id, "first": first, "last": last, "lines": lines, "html": html})
        part = f"chunks {start + 1:,} to {start + len(band):,} of {len(nodes):,}" if len(band) < len(nodes) else ""
        return {"html": render("document.html", chunks=chunks, part=part), "path": path, **section}

    def _nodes(self, path: str) -> list[BaseNode]:
        """Return the chunks of a document in the order of its text."""
        nodes = self._index.nodes(path)
        if not nodes:
            raise DocumentError(f"there is no document {path!r} in the index. Cure: search again")

        def place(node: BaseNode) -> tuple[int, int]:
            page = str(node.metadata.get(metadata.PAGE_LABEL) or "")
            return int(page) if page.isdecimal() else 0, getattr(node, "start_char_idx", None) or 0

        return sorted(nodes, key=place)


def _starts(node: BaseNode, section: Mapping[str, int]) -> bool:
    """Return whether the first line of a section is in a chunk."""
    first, last = (metadata.value_of(node.metadata, key) for key in (metadata.START_LINE, metadata.END_LINE))
    return bool(section and first and last and first <= section["first"] <= last)
