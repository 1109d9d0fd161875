"""The page of an index, for users of this machine who know its address.

The page itself contains no notes. It requests them with a token, which follows the ``#`` in its
address, because browsers never send that part. Requests with a foreign ``Host`` or ``Origin`` are
refused. The page may only run and load files of this package.
"""

from __future__ import annotations

import gc
import json
import re
import secrets
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual.app.index.index import ContextualIndex
from llama_index_contextual.app.serve.answering import answer, answering_model, model_name
from llama_index_contextual.app.serve.excerpts import searched_terms
from llama_index_contextual.app.serve.hits import ShownHit, find_hits, note_name
from llama_index_contextual.app.serve.html import (
    PICTURES,
    chunk_views,
    marked_html,
    node_html,
    render,
)
from llama_index_contextual.app.serve.local_server import (
    LOOPBACK,
    limit_arenas,
    run_app,
)
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.app.settings.local import LocalModel
from llama_index_contextual.retrievers.query import note_filters
from llama_index_contextual.tools.listing import folders_of, labels_of
from llama_index_contextual.tools.places import part_of
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import ContextualError, DocumentError, SettingError, needs

with needs("starlette", "app"):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
    from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.llms import LLM
    from llama_index.core.vector_stores.types import MetadataFilters
    from starlette.requests import Request

    from llama_index_contextual.app.index.rows import DocumentRow
    from llama_index_contextual.retrievers.explanation import Explanation

_MAX_NOTES = 8
_MAX_HITS = 40  # before they are grouped by note
_MAX_SOURCES = 5  # of an answer
_MAX_WEAK = 3  # notes shown below "nothing relevant"
_MAX_BANDS = 300  # chunks of a document that are shown at once
_MAX_CHARS = 2000  # of a question
_MAX_CHOICES = 200  # folders, and tags
_MAX_RECENT = 6
_MAX_EXAMPLES = 3
_LATEST = 60  # documents considered for recent notes and examples
_MAX_PICTURE = 20_000_000  # bytes
_LOOK_SECONDS = 0.3
# Examples need words that are specific to a note. Headings of several notes are from a template.
_MAX_NOTES_PER_HEADING = 1
_LONGEST_EXAMPLE = 60
_NO_MODEL = (
    "No language model is set. Start the page with one: serve --llm ollama:qwen3:0.6b (after "
    "ollama pull qwen3:0.6b), or --llm openai:MODEL. Search works without a model."
)
_INSTANT = (LocalModel, NoEmbedding)  # fast enough to search after every letter
_WORDS = re.compile(r"[^\W\d_]{3}")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
        "data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_REFUSED = {
    421: "the host name is not valid for this server",
    403: "requests from other pages are not allowed",
    401: "the token is missing or wrong",
}


def serve(folder: str | Path | None, *, port: int = 8766, **options: Any) -> None:
    """Serve the page of an index until the process is stopped (Ctrl-C).

    Its address is written to standard error.

    Args:
        folder: The folder of the documents. None means the folder that ``storage=`` was made from.
        port: The port to listen on; 0 for a free one.
        **options: Further arguments of ``ContextualIndex.open``.

    Raises:
        MissingExtraError: The ``app`` extra is not installed.
        SettingError: The address or the port cannot be used.
        ContextualError: The index cannot be opened.
    """
    limit_arenas()
    with ContextualIndex.open(folder, create=False, **options) as index:
        api = PageApi(index, index.settings.configuration["context_options.llm"])
        token = secrets.token_urlsafe(24)
        gc.freeze()  # see mcp_server.serve
        run_app(
            lambda port: app_of(api, token, {f"{host}:{port}" for host in LOOPBACK}),
            port,
            f"/#token={token}",
        )


def app_of(api: PageApi, token: str, hosts: Collection[str]) -> Starlette:
    """Return the web application.

    Args:
        api: The functions behind the requests.
        token: The token that requests must contain.
        hosts: The valid values of ``Host``, as ``HOST:PORT``.
    """

    async def guard(request: Request, call: RequestResponseEndpoint) -> Response:
        """Refuse requests that are not from the page, and add security headers."""
        status = _refusal(request, token, hosts)
        if status:
            response: Response = JSONResponse({"error": _REFUSED[status]}, status)
        else:
            response = await call(request)
        response.headers.update(_HEADERS)
        return response

    def ask(request: Request) -> Response:
        lines = (json.dumps(part) + "\n" for part in api.answer(request.query_params))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    def picture(request: Request) -> Response:
        return FileResponse(api.picture(request.query_params))

    def data(
        answer: Callable[[Mapping[str, str]], dict[str, Any]],
    ) -> Callable[[Request], JSONResponse]:
        return lambda request: JSONResponse(answer(request.query_params))

    files = StaticFiles(packages=[("llama_index_contextual.app.serve", "static")], html=True)
    return Starlette(
        routes=[
            Route("/api/state", data(lambda _: api.state())),
            Route("/api/search", data(api.search)),
            Route("/api/document", data(api.document)),
            Route("/api/ask", ask),
            Route("/api/picture", picture),
            Mount("/", files),
        ],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
        exception_handlers={
            ContextualError: lambda _, error: JSONResponse({"error": str(error)}, 400)
        },
    )


def _refusal(request: Request, token: str, hosts: Collection[str]) -> int:
    """Return the HTTP status of a refusal, or 0 if the request is allowed."""
    named_hosts = request.headers.getlist("host")
    origins = request.headers.getlist("origin")
    authorization = request.headers.getlist("authorization")
    # The name of another web page may resolve to this machine.
    if len(named_hosts) != 1 or named_hosts[0].lower() not in hosts:
        return 421
    own_origins = {f"http://{host}" for host in hosts}
    if any(origin.lower() not in own_origins for origin in origins):
        return 403
    if not request.scope["path"].startswith("/api/"):
        return 0
    expected = f"Bearer {token}".encode()
    is_known = len(authorization) == 1 and secrets.compare_digest(
        authorization[0].encode("latin-1"), expected
    )
    return 0 if is_known else 401


def address(path: str) -> str:
    """Return the link that opens a document on the page."""
    return f"#path={quote(path)}"


class _Overview(NamedTuple):
    """The choices that the page offers, for one state of the index."""

    change: int
    data: dict[str, Any]


class PageApi:
    """The functions of an open index behind the requests of the page. They are thread-safe.

    Args:
        index: The index, which is only read.
        llm: The language model that answers; None for search alone.
    """

    def __init__(self, index: ContextualIndex, llm: str | LLM | None = None) -> None:
        self._index = index
        self._notes = index.notes
        self._model: LLM | None = None
        if llm is not None:
            self._model = answering_model(llm, index.settings.configuration["timeout"])
        self._overview = _Overview(-1, {})

    def state(self) -> dict[str, Any]:
        """Return the size of the index, how far it is behind its folder, and the choices."""
        index = self._index
        change = index.settings.database.state().change
        documents = index.documents()
        names = filter(None, index.settings.folders.by_name)
        if self._overview.change != change:
            self._overview = _Overview(change, self._overview_of(documents))
        return {
            "name": ", ".join(names) or index.folder.name,
            "documents": len(documents),
            "note": str(index.freshness(_LOOK_SECONDS)),
            "llm": "" if self._model is None else model_name(self._model),
            "no_model": _NO_MODEL,
            "instant": isinstance(index.settings.embedding, _INSTANT),
            **self._overview.data,
        }

    def _overview_of(self, documents: Mapping[str, DocumentRow]) -> dict[str, Any]:
        """Return folders, tags and dates to filter by, recent notes, and example questions."""
        tags = {tag for labels in labels_of(self._notes).values() for tag in labels.tags}
        with self._index.settings.database.reading() as snapshot:
            dates = snapshot.values(metadata.DATE, snapshot.rows())
        days = sorted({str(date)[:10] for date in dates if date})

        def changed(path: str) -> list[str]:
            return documents[path].stamp.split()[1:]

        latest = sorted(documents, key=changed, reverse=True)[:_LATEST]
        notes = {path: self._index.nodes(path) for path in latest}
        recent = [
            {"path": path, "name": note_name(nodes[0]), "folder": path.rpartition("/")[0]}
            for path, nodes in notes.items()
            if nodes
        ]
        return {
            "folders": sorted(folders_of(documents))[:_MAX_CHOICES],
            "tags": sorted(tags)[:_MAX_CHOICES],
            "days": [days[0], days[-1]] if days else [],
            "recent": recent[:_MAX_RECENT],
            "examples": _examples(notes.values())[:_MAX_EXAMPLES],
        }

    def search(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """Return the notes that match a question, as HTML.

        Args:
            fields: ``q``, and the optional filters ``folder``, ``tag``, ``since`` and ``until``.
        """
        question, filters = _parsed_query(fields)
        explanation, hits, suggestions = find_hits(
            self._index, question, _MAX_HITS, filters, per_file=0
        )
        weak = list[ShownHit]()
        if not hits:
            weak = find_hits(
                self._index, question, _MAX_HITS, filters, per_file=0, min_score=0.0
            ).hits
        notes = _group_by_note(hits)[:_MAX_NOTES]
        return _hits_html(explanation, notes, _group_by_note(weak)[:_MAX_WEAK], suggestions)

    def answer(self, fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the sources of an answer as HTML, then its sentences, or an error."""
        try:
            if self._model is None:
                raise SettingError(_NO_MODEL)
            question, filters = _parsed_query(fields)
            explanation, hits, _ = find_hits(
                self._index, question, _MAX_SOURCES, filters, per_file=0
            )
            yield _hits_html(explanation, [[hit] for hit in hits])
            sources = [hit.node.get_content(MetadataMode.LLM) for hit in hits]
            for sentence in answer(question, sources, self._model):
                yield {"sentence": asdict(sentence)}
        except ContextualError as error:
            yield {"error": str(error)}

    def picture(self, fields: Mapping[str, str]) -> Path:
        """Return the file of a picture in the folder that the file rules do not exclude.

        Args:
            fields: ``path`` of the picture, or the end of the path, as in links of Obsidian.

        Raises:
            DocumentError: The picture does not exist, is a link, or is too large to show.
        """
        path = fields.get("path") or ""
        pictures = [
            name
            for name in self._index.settings.find_files().skipped
            if name.lower().endswith(PICTURES) and f"/{name}".endswith(f"/{path}")
        ]
        if not pictures or not path:
            raise DocumentError(f"The folder does not contain the picture {path!r}.")
        place = Path(self._index.settings.folders.place(min(pictures, key=len)))
        if place.is_symlink() or place.stat().st_size > _MAX_PICTURE:
            raise DocumentError(f"The picture {path!r} is too large to show, or a link.")
        return place

    def document(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """Return a document as HTML: its chunks in order, each in a band with its lines.

        Args:
            fields: ``path`` of the document, or a link in a note, ``[[Name#Heading]]``; ``id`` of a
                chunk around which a long document is shown; ``q``, whose words are marked.

        Raises:
            DocumentError: The index does not contain the document.
        """
        path = fields.get("path") or ""
        section: dict[str, int] = {}
        if path.startswith("[["):
            note = part_of(self._notes, path)
            path = note.path
            if not note.is_whole:
                section = {"first": note.from_line, "last": note.to_line}
        nodes = sorted(self._index.nodes(path), key=_reading_order)
        if not nodes:
            raise DocumentError(f"The index does not contain the document {path!r}. Search again.")
        start = _first_band(nodes, fields.get("id") or "", section.get("first", -1))
        band = nodes[start : start + _MAX_BANDS]
        terms = searched_terms((fields.get("q") or "")[:_MAX_CHARS])
        chunks = [
            (place_of(node), node_html(node, address, terms, text))
            for node, _, text in chunk_views(band)
        ]
        part = ""
        if len(band) < len(nodes):
            part = f"chunks {start + 1:,} to {start + len(band):,} of {len(nodes):,}"
        html = render("document.html", chunks=chunks, part=part)
        return {"html": html, "path": path, "name": note_name(nodes[0]), **section}


def _examples(notes: Iterable[Sequence[BaseNode]]) -> list[str]:
    """Return questions that the notes answer: the name of each note with one of its headings.

    Headings of several notes are left out, because they come from a template. So are headings
    without words, such as dates.
    """
    named = list[tuple[str, list[str]]]()
    for nodes in notes:
        if nodes:
            paths = [metadata.heading_titles(node.metadata) for node in nodes]
            named.append((note_name(nodes[0]), [path[-1] for path in paths if path]))
    notes_with = Counter(title.casefold() for _, titles in named for title in {*titles})
    questions = list[str]()
    for name, titles in named:
        own = [
            title
            for title in titles
            if notes_with[title.casefold()] <= _MAX_NOTES_PER_HEADING
            and title.casefold() not in name.casefold()
            and _WORDS.search(title)
        ]
        if own and _WORDS.search(name):
            questions.append(f"{name} {own[0]}")
        elif own:  # the name of the note is a date
            questions.append(own[0])
    return [question for question in questions if len(question) <= _LONGEST_EXAMPLE]


def _first_band(nodes: Sequence[BaseNode], node_id: str, line: int) -> int:
    """Return the position of the first chunk to show, so that a chunk or line is visible."""
    first_match = 0
    for position, node in enumerate(nodes):
        place = place_of(node)
        if place["id"] == node_id or place["first"] <= line <= place["last"]:
            first_match = position
            break
    return max(0, min(first_match - _MAX_BANDS // 2, len(nodes) - _MAX_BANDS))


def _hits_html(
    explanation: Explanation,
    notes: Sequence[Sequence[ShownHit]],
    least: Sequence[Sequence[ShownHit]] = (),
    suggestions: Sequence[str] = (),
) -> dict[str, Any]:
    """Return notes with their hits as HTML."""
    # The page has its own hint that hits are not relevant enough.
    lines = [line for line in explanation.remarks if "min_score" not in line]
    html = render(
        "found.html",
        notes=notes,
        lines=lines,
        least=least,
        suggestions=suggestions,
        marked=marked_html,
        place_of=place_of,
    )
    return {"html": html, "count": len(notes)}


def _reading_order(node: BaseNode) -> tuple[int, int]:
    """Return the key that sorts chunks in reading order: page number and offset."""
    page = str(node.metadata.get(metadata.PAGE_LABEL) or "")
    start = getattr(node, "start_char_idx", None) or 0
    return int(page) if page.isdecimal() else 0, start


def place_of(node: BaseNode) -> dict[str, Any]:
    """Return the path, the id and the lines of a chunk, and its lines or page in words."""
    path = metadata.path_of(node.metadata)
    citation = metadata.citation_of(node.metadata).removeprefix(path)
    return {
        "path": path,
        "id": node.node_id,
        "first": metadata.value_of(node.metadata, metadata.START_LINE) or 0,
        "last": metadata.value_of(node.metadata, metadata.END_LINE) or 0,
        "words": citation.lstrip("#").replace("-L", "–"),
    }


class _Query(NamedTuple):
    """The question and the filters of a request."""

    question: str
    filters: MetadataFilters | None


def _parsed_query(fields: Mapping[str, str]) -> _Query:
    """Return the question of a request with its filters.

    Raises:
        SettingError: The question is too long, or a filter is not valid.
    """
    question = str(fields.get("q") or "").strip()
    if len(question) > _MAX_CHARS:
        raise SettingError(
            f"A question has at most {_MAX_CHARS} characters (got {len(question)}). Shorten it."
        )
    narrowed = {key: str(fields.get(key) or "") for key in ("tag", "since", "until")}
    path = str(fields.get("folder") or "")
    return _Query(question, note_filters(path=path, **narrowed))


def _group_by_note(hits: Sequence[ShownHit]) -> list[list[ShownHit]]:
    """Group hits by note. The note with the best hit comes first."""
    notes: dict[str, list[ShownHit]] = {}
    for hit in hits:
        notes.setdefault(hit.path or hit.node.node_id, []).append(hit)
    return list(notes.values())
