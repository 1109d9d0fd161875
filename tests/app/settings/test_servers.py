"""Clients of model servers send texts to the named server only."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from llama_index.core.llms import ChatMessage

from llama_index_contextual.app.settings.models import NamedModel, resolve_embedding
from llama_index_contextual.app.settings.servers import client_options


@contextmanager
def recording_server(redirect_to=None):
    """Run a server that records every request and answers with a redirect, or with an error."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            requests.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(307 if redirect_to else 400)
            if redirect_to:
                self.send_header("Location", redirect_to)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815
        do_CONNECT = do_POST  # noqa: N815

        def log_message(self, *_):
            """Keep the output of the tests clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
        server.shutdown()


def chat(spec):
    return NamedModel(spec, 100, timeout=2)().chat([ChatMessage("A secret.")])


def achat(spec):
    return asyncio.run(NamedModel(spec, 100, timeout=2)().achat([ChatMessage("A secret.")]))


def embed(spec):
    return resolve_embedding(spec, timeout=2).get_text_embedding("A secret.")


def aembed(spec):
    return asyncio.run(resolve_embedding(spec, timeout=2).aget_query_embedding("A secret."))


CLIENTS = [
    pytest.param(call, spec, id=f"{call.__name__}-{spec.partition(':')[0]}")
    for call in (chat, achat, embed, aembed)
    for spec in ("ollama:m@{}", "openai:m@{}/v1")
]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    async def no_sleep(_):
        return None

    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    monkeypatch.setattr("tenacity.asyncio._portable_async_sleep", no_sleep)


@pytest.mark.parametrize(("call", "spec"), CLIENTS)
def test_no_client_follows_a_redirect(call, spec):
    with (
        recording_server() as (other_url, other_requests),
        recording_server(redirect_to=f"{other_url}/steal") as (url, requests),
    ):
        with pytest.raises(Exception) as raised:  # noqa: PT011
            call(spec.format(url))
        assert requests
        assert other_requests == []
    messages = []
    error = raised.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    assert any("redirects to" in message for message in messages), messages


@pytest.mark.parametrize(("call", "spec"), CLIENTS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.5"])
def test_requests_to_this_machine_use_no_proxy(call, spec, host, monkeypatch):
    with recording_server() as (proxy, proxy_requests), recording_server() as (url, requests):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        address = url.replace("127.0.0.1", host)
        if host == "127.0.0.5":
            options = client_options(2, url=address)
            assert "all://127.0.0.5" in options["mounts"]
            return
        with pytest.raises(Exception):  # noqa: B017, PT011
            call(spec.format(address))
        assert requests
        assert proxy_requests == []


def test_other_hosts_use_the_proxy_of_the_environment(monkeypatch):
    with recording_server() as (proxy, proxy_requests):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with pytest.raises(Exception):  # noqa: B017, PT011
            chat("openai:m@http://models.example/v1")
        assert proxy_requests == ["http://models.example/v1/chat/completions"]
