"""The page of an index: on this machine alone, for who has the token of its address, and for no other page.

The page itself holds nothing of the notes. Whatever it shows it asks for with the token, which stands behind the ``#``
of the address: a browser sends that part to nobody. A request whose ``Host`` or ``Origin`` is another machine's is
refused, and the page may run no script and load nothing but what comes with this package.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual.app.index.index import ContextualIndex
from llama_index_contextual.app.serve.answering import answer, answering_model, model_name
from llama_index_contextual.app.serve.excerpts import searched_terms
from llama_index_contextual.app.serve.hits import ShownHit, find_hits, note_name
from llama_index_contextual.app.serve.html import chunk_views, marked_html, node_html, render
from llama_index_contextual.app.serve.local_server import LOOPBACK, limit_arenas, run_app
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.app.settings.local import LocalModel
from llama_index_contextual.retrievers.query import note_filters
from llama_index_contextual.tools.listing import folders_of, labels_of
from llama_index_contextual.tools.notes import FolderNotes
from llama_index_contextual.tools.places import part_of
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import ContextualError, DocumentError, SettingError, needs

with needs("starlette", "app"):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_index.core.llms import LLM
    from llama_index.core.vector_stores.types import MetadataFilters
    from starlette.requests import Request

    from llama_index_contextual.app.index.rows import DocumentRow
    from llama_index_contextual.retrievers.explanation import Explanation

_NOTES: Final = 8
_HITS: Final = 40  # that are folded into notes
_SOURCES: Final = 5
_LEAST: Final = 3  # notes behind "nothing relevant"
_BANDS: Final = 300  # chunks of a document that are shown at once
_MOST_CHARS: Final = 2000  # of a question
_MOST_CHOICES: Final = 200  # folders, and tags
_RECENT: Final = 6
_EXAMPLES: Final = 3
_LATEST: Final = 30  # documents whose headings are looked at for examples
_LOOK_SECONDS: Final = 0.3
_FREE: Final = (LocalModel, NoEmbedding)  # run at every letter; others when a question is whole
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_REFUSED: Final = {
    421: "this host is not served",
    403: "another page asks",
    401: "the token is not this server's",
}


def serve(folder: str | Path | None, *, port: int = 8766, **options: Any) -> None:
    """Serve the page of an index until the process is stopped (Ctrl-C); its address is written to standard error.

    Args:
        folder: The documents; None for the folder that ``storage=`` was made from.
        port: Where it listens; 0 for one that is free.
        **options: More of ``ContextualIndex.open``.

    Raises:
        MissingExtraError: The ``app`` extra is not installed.
        SettingError: The address or the port cannot be used.
        ContextualError: The index cannot be opened.
    """
    limit_arenas()
    with ContextualIndex.open(folder, create=False, **options) as index:
        api = PageApi(index, index.settings.configuration["context_options.llm"])
        token = secrets.token_urlsafe(24)
        run_app(
            lambda port: app_of(api, token, {f"{host}:{port}" for host in LOOPBACK}),
            port,
            f"/#token={token}",
        )


def app_of(api: PageApi, token: str, hosts: Collection[str]) -> Starlette:
    """The application.

    Args:
        api: Answers.
        token: What a request has to bring.
        hosts: ``HOST:PORT`` of the addresses that it is reached by.
    """

    async def guard(request: Request, call: RequestResponseEndpoint) -> Response:
        """Refuse what does not come from the page, and tell browsers what the page may do."""
        status = _refusal(request, token, hosts)
        response = (
            JSONResponse({"error": _REFUSED[status]}, status) if status else await call(request)
        )
        response.headers.update(_HEADERS)
        return response

    def ask(request: Request) -> Response:
        lines = (json.dumps(part) + "\n" for part in api.answer(request.query_params))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    return Starlette(
        routes=[
            Route("/api/state", lambda _: JSONResponse(api.state())),
            Route("/api/search", lambda request: JSONResponse(api.search(request.query_params))),
            Route(
                "/api/document", lambda request: JSONResponse(api.document(request.query_params))
            ),
            Route("/api/ask", ask),
            Mount(
                "/",
                StaticFiles(packages=[("llama_index_contextual.app.serve", "static")], html=True),
            ),
        ],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
        exception_handlers={
            ContextualError: lambda _, error: JSONResponse({"error": str(error)}, 400)
        },
    )


def _refusal(request: Request, token: str, hosts: Collection[str]) -> int:
    """The status of a refusal; 0 for none."""
    named, origins, authorization = map(
        request.headers.getlist, ("host", "origin", "authorization")
    )
    if (
        len(named) != 1 or named[0].lower() not in hosts
    ):  # a web page that lets its own name point here
        return 421
    if any(origin.lower() not in {f"http://{host}" for host in hosts} for origin in origins):
        return 403
    wanted = f"Bearer {token}".encode()
    is_known = len(authorization) == 1 and secrets.compare_digest(
        authorization[0].encode("latin-1"), wanted
    )
    return 0 if is_known or not request.scope["path"].startswith("/api/") else 401


def address(path: str) -> str:
    """The link that the page opens a document by."""
    return f"#path={quote(path)}"


class PageApi:
    """An open index, as the page asks it. Every method may be called by several threads.

    Args:
        index: The index; it is only read.
        llm: Answers; None where nobody does.
    """

    def __init__(self, index: ContextualIndex, llm: str | LLM | None = None) -> None:
        self._index = index
        self._model = (
            None if llm is None else answering_model(llm, index.settings.configuration["timeout"])
        )
        self._overview: tuple[int, dict[str, Any]] = (-1, {})

    def state(self) -> dict[str, Any]:
        """What the index holds, how far it is behind its folder, and what can be chosen from."""
        index, state = self._index, self._index.settings.database.state()
        documents = index.documents()
        if self._overview[0] != state.change:
            self._overview = state.change, self._overview_of(documents)
        return {
            "name": ", ".join(index.settings.folders.collections) or index.folder.name,
            "documents": len(documents),
            "note": str(index.freshness(_LOOK_SECONDS)),
            "llm": "" if self._model is None else model_name(self._model),
            "instant": isinstance(index.settings.embedding, _FREE),
            **self._overview[1],
        }

    def _overview_of(self, documents: Mapping[str, DocumentRow]) -> dict[str, Any]:
        """Folders, tags and days to narrow by; the notes that changed last; questions made of their headings."""
        tags = {
            tag for labels in labels_of(FolderNotes(self._index)).values() for tag in labels.tags
        }
        days = sorted({str(day)[:10] for day in self._index.values(metadata.DATE) if day})
        recent, questions = list[dict[str, str]](), list[str]()
        for path in sorted(
            documents, key=lambda path: documents[path].stamp.split()[1:], reverse=True
        )[:_LATEST]:
            if not (nodes := self._index.nodes(path)):
                continue
            name, titles = note_name(nodes[0]), metadata.heading_titles(nodes[-1].metadata)
            recent.append({"path": path, "name": name, "folder": path.rpartition("/")[0]})
            questions += [f"{name} {titles[-1]}"] if titles and titles[-1] != name else []
        return {
            "folders": sorted(folders_of(documents))[:_MOST_CHOICES],
            "tags": sorted(tags)[:_MOST_CHOICES],
            "days": [days[0], days[-1]] if days else [],
            "recent": recent[:_RECENT],
            "examples": questions[:_EXAMPLES],
        }

    def search(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """The notes that answer a question as HTML.

        Args:
            fields: ``q``, and ``folder``, ``tag``, ``since`` and ``until`` where they narrow it.
        """
        question, filters = _parsed_query(fields)
        explanation, hits = find_hits(self._index, question, _HITS, filters, per_file=0)
        _, others = (
            (None, [])
            if hits
            else find_hits(self._index, question, _HITS, filters, per_file=0, min_score=0.0)
        )
        return _found(explanation, _by_note(hits)[:_NOTES], _by_note(others)[:_LEAST])

    def answer(self, fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the sources of an answer as HTML, then its sentences, then what went wrong if anything did."""
        try:
            if self._model is None:
                raise SettingError("no language model is set. Cure: serve --llm MODEL")
            question, filters = _parsed_query(fields)
            explanation, hits = find_hits(self._index, question, _SOURCES, filters, per_file=0)
            yield _found(explanation, [[hit] for hit in hits])
            sources = [hit.node.get_content(MetadataMode.LLM) for hit in hits]
            for sentence in answer(question, sources, self._model):
                yield {"sentence": asdict(sentence)}
        except ContextualError as error:
            yield {"error": str(error)}

    def document(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """A document as HTML: its chunks in order, each in a band with its lines.

        Args:
            fields: ``path`` of the document, or its name in a note, ``[[Name#Heading]]``; ``id`` of a chunk that is to
                be seen, as of a long document those around it are shown; ``q``, whose words are marked.

        Raises:
            DocumentError: There is none of this path.
        """
        path, node_id, question = (fields.get(key, "") for key in ("path", "id", "q"))
        section: dict[str, int] = {}
        if path.startswith("[["):
            note = part_of(FolderNotes(self._index), path)
            path, section = (
                note.path,
                {"first": note.from_line, "last": note.to_line} if not note.is_whole else {},
            )
        nodes = sorted(self._index.nodes(path), key=_position)
        if not nodes:
            raise DocumentError(f"there is no document {path!r} in the index. Cure: search again")
        places, first = list(map(place_of, nodes)), section.get("first", -1)
        around = (
            at
            for at, one in enumerate(places)
            if one["id"] == node_id or one["first"] <= first <= one["last"]
        )
        start = max(0, min(next(around, 0) - _BANDS // 2, len(nodes) - _BANDS))
        band, terms = nodes[start : start + _BANDS], searched_terms(question[:_MOST_CHARS])
        chunks = [
            (place_of(node), node_html(node, address, terms, text))
            for node, _, text in chunk_views(band)
        ]
        part = (
            f"chunks {start + 1:,} to {start + len(band):,} of {len(nodes):,}"
            if len(band) < len(nodes)
            else ""
        )
        html = render("document.html", chunks=chunks, part=part)
        return {"html": html, "path": path, "name": note_name(nodes[0]), **section}


def _found(
    explanation: Explanation,
    notes: Sequence[Sequence[ShownHit]],
    least: Sequence[Sequence[ShownHit]] = (),
) -> dict[str, Any]:
    """Notes with their hits as HTML."""
    lines = [
        line for line in explanation.remarks if "min_score" not in line
    ]  # that, the page shows by itself
    html = render(
        "found.html", notes=notes, lines=lines, least=least, marked=marked_html, place_of=place_of
    )
    return {"html": html, "count": len(notes)}


def _position(node: BaseNode) -> tuple[int, int]:
    """Where a chunk stands in its document."""
    page = str(node.metadata.get(metadata.PAGE_LABEL) or "")
    return int(page) if page.isdecimal() else 0, getattr(node, "start_char_idx", None) or 0


def place_of(node: BaseNode) -> dict[str, Any]:
    """A chunk as the page addresses it: path, id, lines, and the lines or page in words."""
    path = metadata.path_of(node.metadata)
    first, last = (
        metadata.value_of(node.metadata, key) or 0
        for key in (metadata.START_LINE, metadata.END_LINE)
    )
    words = metadata.citation_of(node.metadata).removeprefix(path).lstrip("#").replace("-L", "–")
    return {"path": path, "id": node.node_id, "first": first, "last": last, "words": words}


def _parsed_query(fields: Mapping[str, str]) -> tuple[str, MetadataFilters | None]:
    """The question of a request, and its filters.

    Raises:
        SettingError: It is too long, or a filter cannot work.
    """
    question = str(fields.get("q") or "").strip()
    if len(question) > _MOST_CHARS:
        raise SettingError(
            f"the question has {len(question)} characters. Cure: at most {_MOST_CHARS}"
        )
    narrowed = {key: str(fields.get(key) or "") for key in ("tag", "since", "until")}
    return question, note_filters(path=str(fields.get("folder") or ""), **narrowed)


def _by_note(hits: Sequence[ShownHit]) -> list[list[ShownHit]]:
    """The hits of each note, the note with the best hit first."""
    notes: dict[str, list[ShownHit]] = {}
    for hit in hits:
        notes.setdefault(hit.path or hit.node.node_id, []).append(hit)
    return list(notes.values())
