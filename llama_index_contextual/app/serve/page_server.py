"""The page's server: on this machine alone, for who has the token of its address, and for no other page.

The page itself holds nothing of the notes. Whatever it shows it asks for with the token, which stands behind the ``#``
of the address: a browser sends that part to nobody. A request whose ``Host`` or ``Origin`` is another machine's is
refused, and the page may run no script and load nothing but what comes with this package.
"""

from __future__ import annotations

import json
import secrets
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.serve.page_api import PageApi
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.errors import ContextualError, SettingError, listener, needs, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from llama_index.core.llms import LLM
    from starlette.applications import Starlette
    from starlette.middleware.base import RequestResponseEndpoint
    from starlette.requests import Request
    from starlette.responses import Response

    from llama_index_contextual.app.settings.schema import Configuration

_LOOPBACK: Final = ("127.0.0.1", "localhost")
_MOST_BODY: Final = 64_000
_STATIC: Final = {
    "/": ("static/page.html", "text/html"),
    "/page.js": ("static/page.js", "text/javascript"),
    "/page.css": ("static/page.css", "text/css"),
    "/look.css": ("templates/look.css", "text/css"),
}
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
_REFUSED: Final = {421: "this host is not served", 403: "another page asks", 401: "the token is not this server's"}


def serve(
    folder: str | Path | None,
    *,
    llm: str | LLM | None = None,
    port: int = 8766,
    config: Callable[[Path], Configuration] = load_configuration,
    **options: Any,
) -> None:
    """Serve the page of an index until the process is stopped (Ctrl-C); its address is written to standard error.

    Args:
        folder: The documents; None for the folder that ``storage=`` was made from.
        llm: Answers questions; default the one that the configuration says for contexts, else nobody does.
        port: Where it listens; 0 for one that is free.
        config: Reads the configuration of a folder.
        **options: More of ``ContextualIndex.open``.

    Raises:
        MissingExtraError: The ``app`` extra is not installed.
        SettingError: The address or the port cannot be used.
        ContextualError: The index cannot be opened.
    """
    with needs("starlette or uvicorn", "app"):
        import starlette  # noqa: F401
        import uvicorn
    port = whole("port", port, least=0, most=65535)
    with (
        ContextualIndex.open(folder, config=config, create=False, **options) as index,
        listener("127.0.0.1", port) as socket,
    ):
        api = PageApi(index, llm or index.settings.configuration["context_options.llm"])
        token, port = secrets.token_urlsafe(24), socket.getsockname()[1]
        app = app_of(api, token, {f"{host}:{port}" for host in _LOOPBACK})
        sys.stderr.write(f"ready at http://127.0.0.1:{port}/#token={token}\n")
        sys.stderr.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)).run(sockets=[socket])


def app_of(api: PageApi, token: str, hosts: Collection[str]) -> Starlette:
    """The application.

    Args:
        api: Answers.
        token: What a request has to bring.
        hosts: ``HOST:PORT`` of the addresses that it is reached by.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def guard(request: Request, answer: RequestResponseEndpoint) -> Response:
        """Refuse what does not come from the page, and tell browsers what the page may do."""
        status = _refusal(request, token, hosts)
        response = JSONResponse({"error": _REFUSED[status]}, status) if status else await answer(request)
        response.headers.update(_HEADERS)
        return response

    def static(request: Request) -> Response:
        name, kind = _STATIC[request.url.path]
        return Response(files("llama_index_contextual.app.serve").joinpath(name).read_bytes(), media_type=kind)

    def state(_: Request) -> Response:
        return JSONResponse(api.state())

    def search(request: Request) -> Response:
        return JSONResponse(api.search(request.query_params))

    def document(request: Request) -> Response:
        return JSONResponse(api.document(*(request.query_params.get(key, "") for key in ("path", "id", "q"))))

    async def ask(request: Request) -> Response:
        lines = (json.dumps(part) + "\n" for part in api.answer(await _body(request)))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    def failed(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 400)

    def left(*_: Any) -> Response:  # nobody reads it
        return Response(status_code=499)

    routes = {**dict.fromkeys(_STATIC, static), "/api/state": state, "/api/search": search, "/api/document": document}
    return Starlette(
        routes=[*(Route(path, read) for path, read in routes.items()), Route("/api/ask", ask, methods=["POST"])],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
        exception_handlers={ContextualError: failed, ClientDisconnect: left},
    )


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > _MOST_BODY:
            raise SettingError(f"a request is longer than {_MOST_BODY:,} bytes. Cure: a shorter question")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise SettingError("a request is no JSON object. Cure: the page that this server gives")
    return body


def _refusal(request: Request, token: str, hosts: Collection[str]) -> int:
    """The status of a refusal; 0 for none."""
    named, origins, authorization = map(request.headers.getlist, ("host", "origin", "authorization"))
    if len(named) != 1 or named[0].lower() not in hosts:  # a web page that lets its own name point here
        return 421
    if any(origin.lower() not in {f"http://{host}" for host in hosts} for origin in origins):
        return 403
    wanted = f"Bearer {token}".encode()
    is_known = len(authorization) == 1 and secrets.compare_digest(authorization[0].encode("latin-1"), wanted)
    return 0 if is_known or not request.scope["path"].startswith("/api/") else 401
