"""What the page shows: hits, documents with their chunks, answers; and the questions that somebody marked on it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from concurrent.futures import wait
from html import escape
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from llama_index.core.schema import MetadataMode

from llama_index_contextual import metadata
from llama_index_contextual.app.answering import NOTHING, CitedSynthesizer
from llama_index_contextual.app.config import load_configuration
from llama_index_contextual.app.index import explained
from llama_index_contextual.app.notes import part_of
from llama_index_contextual.app.notes.writing import change, turn
from llama_index_contextual.app.preview import chunk_views
from llama_index_contextual.app.report.pages import Marker, node_html, render
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.app.settings.local import E5Embedding, LocalEmbedding
from llama_index_contextual.errors import ContextualError, DocumentError, SettingError
from llama_index_contextual.memory import note_filters
from llama_index_contextual.retrieval import hit_views
from llama_index_contextual.watching import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from llama_index.core.llms import LLM
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.config import Configuration
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
        labels: The questions that were marked.
        llm: Answers; None where nobody does.
    """

    def __init__(self, index: ContextualIndex, labels: Labels, llm: str | LLM | None = None) -> None:
        self._index, self._labels = index, labels
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
        return {**facts, **self._choices[1], **self._labels.state()}

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
        return {"html": self._html(explanation, fields["q"]), "count": len(explanation)}

    def answer(self, fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the sources of an answer as HTML, then its sentences, then what went wrong if anything did."""
        try:
            if self._writer is None:
                raise SettingError("no language model is set. Cure: serve --llm MODEL")
            explanation = self._ask(fields, _SOURCES)
            yield {"html": self._html(explanation, fields["q"]), "count": len(explanation)}
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

    def _html(self, explanation: Explanation, question: str) -> str:
        hits = list(hit_views(explanation, address))
        marked = self._labels.of(question)
        nodes = [hit.node.node for hit in explanation]
        for view, node in zip(hits, nodes, strict=True):
            view["marked"] = self._labels.line(question, node) in marked
        return render("found.html", hits=hits, warnings=explanation.said)

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

    def mark(self, question: str, path: str, node_id: str, *, answers: bool) -> dict[str, Any]:
        """Write down that a chunk answers a question, or take that back; return the state of the questions."""
        node = next((node for node in self._nodes(path) if node.node_id == node_id), None)
        if node is None:
            raise DocumentError(f"{path!r} has changed since. Cure: search again")
        self._labels.mark(question.strip()[:_MOST_CHARS], node, answers=answers)
        return self._labels.state()

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


FILE: Final = "questions.jsonl"
NEEDED: Final = 30  # questions; with fewer a difference is mostly chance
_END_SECONDS: Final = 2.0


class Labels:
    """The file of marked questions in a folder, and the measuring that is at work with it.

    Args:
        folder: The documents; the file is ``questions.jsonl`` in it.
        config: Reads the configuration of a folder.
        several: Whether the index is of several folders, of which none is measured here.
    """

    def __init__(
        self, folder: Path, config: Callable[[Path], Configuration] = load_configuration, *, several: bool = False
    ) -> None:
        self._folder, self._config, self._several = folder, config, several
        self._guard = threading.Lock()
        self._kind, self._line, self._is_ended = "", "", False
        self._outcome: Future[dict[str, str]] | None = None

    @property
    def measuring(self) -> bool:
        """Return whether something is being measured."""
        return self._outcome is not None and not self._outcome.done()

    def state(self) -> dict[str, Any]:
        """Return how many questions there are, how many are needed, and what is measured or was."""
        questions = {json.dumps(line.get("question")) for line in self._lines()}
        job, running = None, self.measuring
        if self._outcome is not None:
            outcome = {"line": self._line} if running else self._outcome.result()
            job = {"kind": self._kind, "running": running, **outcome}
        return {"marked": len(questions), "needed": NEEDED, "file": FILE, "job": job}

    def line(self, question: str, node: BaseNode) -> str:
        """Return the line that says that a chunk answers a question, as ``evaluate`` reads it."""
        values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
        first, last = values.get(metadata.START_LINE), values.get(metadata.END_LINE)
        entry = {"question": question.strip(), "path": metadata.path_of(values)}
        if page := values.get(metadata.PAGE_LABEL):  # lines are those of the page
            entry["page"] = str(page)
        elif first:
            entry["lines"] = f"{first}-{last}"
        return json.dumps(entry, ensure_ascii=False)

    def of(self, question: str) -> set[str]:
        """Return the lines of a question, as :meth:`line` writes them."""
        lines = (line for line in self._lines() if line.get("question") == question.strip())
        return {json.dumps(line, ensure_ascii=False) for line in lines}

    def mark(self, question: str, node: BaseNode, *, answers: bool) -> None:
        """Append the line of a question and a chunk, or take it out; all other bytes of the file stay.

        Raises:
            SettingError: There is no question, or the file is a link.
            StorageError: The file cannot be written; it is unharmed.
        """
        if not question:
            raise SettingError("the question is empty. Cure: search for something first")
        line = self.line(question, node).encode()

        def edit(before: bytes | None) -> bytes:
            lines = (before or b"").splitlines(keepends=True)
            others = [other for other in lines if other.strip() != line]
            if not answers:
                return b"".join(others)
            if len(others) < len(lines):
                return before or b""
            end = b"\n" if lines and not lines[-1].endswith(b"\n") else b""
            return b"".join(lines) + end + line + b"\n"

        with turn(self._folder):
            change(self._folder, FILE, edit, backup=lambda: False)

    def measure(self, kind: str) -> None:
        """Begin to evaluate or to tune with the questions, in a thread; :meth:`state` says how far it is.

        Raises:
            SettingError: There are too few questions, something is being measured, or the kind is unknown.
        """
        count = self.state()["marked"]
        with self._guard:
            if kind not in ("evaluate", "tune"):
                raise SettingError(f"kind={kind!r} is not known. Cure: 'evaluate' or 'tune'")
            if count < NEEDED:
                raise SettingError(f"{count} questions are marked. Cure: mark {NEEDED}; fewer show mostly chance")
            if self._several:
                raise SettingError("this index is of several folders. Cure: evaluate an index of one of them")
            if self.measuring:
                raise SettingError("something is being measured. Cure: wait until it ends")
            self._kind, self._line = kind, "It begins …"
            self._outcome = in_thread(self._measured, kind)

    def end(self) -> bool:
        """Have the measuring stop soon; return whether it has."""
        self._is_ended = True
        if self._outcome is not None:
            wait([self._outcome], _END_SECONDS)
        return not self.measuring

    def _measured(self, kind: str) -> dict[str, str]:
        """Return the page's part on what was measured as ``html``, or else the ``error``."""
        from llama_index_contextual.app.evaluation import evaluate, load_questions, tune

        try:
            questions = load_questions(self._folder / FILE)
            if kind == "evaluate":
                comparison = evaluate(self._folder, questions, say=self._say, config=self._config)
                return {"html": render("comparison_body.html", comparison=comparison)}
            tuned = tune(self._folder, questions, say=self._say, config=self._config)
            html = f"<pre>{escape(str(tuned))}</pre>"
            if tuned.is_more_than_chance:
                command = f"llama-index-contextual tune {self._folder} -q {self._folder / FILE} --write"
                html += f"<p>To keep this: <code>{escape(command)}</code></p>"
        except (ContextualError, _EndedError) as error:
            return {"error": str(error)}
        except Exception as error:  # noqa: BLE001  of a library; the page says it
            return {"error": f"{type(error).__name__}: {error}"}
        return {"html": html}

    def _say(self, line: str) -> None:
        if self._is_ended:
            raise _EndedError("It was ended.")
        self._line = line

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield what the lines of the file hold; those that are no JSON are left to ``evaluate`` to name."""
        file = self._folder / FILE
        text = "" if file.is_symlink() or not file.is_file() else file.read_text("utf-8", errors="replace")
        for line in text.split("\n"):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(entry := json.loads(line), dict):
                    yield entry


class _EndedError(Exception):
    """The process ends."""
