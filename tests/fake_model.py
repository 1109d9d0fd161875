"""A model server that fails on demand.

It has OpenAI's chat interface over HTTP, with faults that real servers have. It only tests faults;
what a real model does is tested with the real one of ``servers.py``.
"""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from llama_index_contextual.app.settings.models import NamedModel

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = "fake"


@dataclass(frozen=True)
class Reply:
    """What the server sends for one request.

    Attributes:
        text: What the model says; by default one good context per chunk that it was asked about.
        status: HTTP status; anything but 200 sends ``body``.
        body: Raw body in place of a chat completion.
        headers: More headers.
        delay: Seconds before the first byte.
        cut: Send only so many bytes of the body, then close the connection.
        usage: Token counts.
    """

    text: str | None = None
    status: int = 200
    body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: int | None = None
    usage: dict[str, Any] = field(
        default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 10}
    )


@dataclass
class Request:
    """A request that the server received."""

    prompt: str
    body: dict[str, Any]
    headers: dict[str, str]
    hung_up: threading.Event = field(default_factory=threading.Event)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the chunks in the prompt."""
        return [int(number) for number in re.findall(r'<chunk number="(\d+)"', self.prompt)]

    @property
    def chunks(self) -> list[str]:
        """Return the texts of the chunks in the prompt."""
        return re.findall(r'<chunk number="\d+"[^>]*>\n(.*?)\n</chunk>', self.prompt, re.DOTALL)


class FakeModel(ThreadingHTTPServer):
    """The server.

    Attributes:
        reply: Returns the reply for a request and its number, counted from 0.
        requests: All chat requests so far.
        probes: How many probes it received.
        probe_status: The status with which it answers a probe.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply: Callable[[Request, int], Reply] = lambda *_: Reply()
        self.requests: list[Request] = []
        self.probes = 0
        self.probe_status = 200
        self.lock = threading.Lock()
        self.busy = self.most_busy = 0
        self.closing = threading.Event()

    @property
    def llm(self) -> str:
        """Return the name for ``llm=``."""
        return f"openai:{MODEL}@http://127.0.0.1:{self.server_port}/v1"

    @property
    def model(self) -> NamedModel:
        """Return the model for the plug-in."""
        return NamedModel(self.llm, 800)

    def wait_for(self, requests: int, seconds: float = 30) -> None:
        """Wait until so many requests have arrived."""
        end = time.monotonic() + seconds
        while len(self.requests) < requests:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.requests)} of {requests} requests in {seconds} s")
            time.sleep(0.01)

    def handle_error(self, *_: Any) -> None:
        """Keep the test output clean of callers that hung up."""

    def start(self) -> FakeModel:
        """Serve in a thread."""
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def stop(self) -> None:
        """Refuse connections from now on."""
        self.closing.set()
        self.shutdown()
        self.server_close()


def good_text(request: Request) -> str:
    """Return a line for each chunk, with words and numbers that no chunk of the tests contains."""
    return "\n".join(
        f"{number}: Explains matter {chr(64 + number)} of this very treatise."
        for number in request.numbers
    )


def always(reply: Reply) -> Callable[[Request, int], Reply]:
    """Return a function that gives the same reply to every request."""
    return lambda *_: reply


def good_but(first: Reply) -> Callable[[Request, int], Reply]:
    """Return a function that gives this reply to the first request and good ones to the others."""
    return lambda _, number: first if number == 0 else Reply()


class _Handler(BaseHTTPRequestHandler):
    server: FakeModel
    protocol_version = "HTTP/1.1"  # clients keep connections, which can cause faults

    def log_message(self, *_: Any) -> None:
        """Keep the test output clean."""

    def do_GET(self) -> None:
        self.server.probes += 1
        self._send(self.server.probe_status, '{"object": "list", "data": []}', {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = body["messages"][-1]["content"]
        prompt = (
            content
            if isinstance(content, str)
            else "".join(block.get("text", "") for block in content)
        )
        request = Request(prompt, body, dict(self.headers))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append(request)
            self.server.busy += 1
            self.server.most_busy = max(self.server.most_busy, self.server.busy)
        try:
            reply = self.server.reply(request, number)
            if reply.delay:
                self._wait(reply.delay, request)
            if not request.hung_up.is_set():
                self._reply(reply, request)
        finally:
            with self.server.lock:
                self.server.busy -= 1

    def _wait(self, seconds: float, request: Request) -> None:
        """Wait until the time is over or the caller has hung up."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.server.closing.is_set():
            readable, _, _ = select.select([self.connection], [], [], 0.02)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                request.hung_up.set()
                return

    def _reply(self, reply: Reply, request: Request) -> None:
        body = reply.body
        if body is None and reply.status != 200:
            body = json.dumps(
                {
                    "error": {
                        "message": f"fault {reply.status}",
                        "type": "fault",
                        "code": reply.status,
                    }
                }
            )
        if body is None and request.body.get("stream"):
            words = re.findall(
                r"\s*\S+\s*|\s+", good_text(request) if reply.text is None else reply.text
            )
            events = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
            body = "".join(
                f"data: {json.dumps({'id': '1', 'model': MODEL, **event})}\n\n" for event in events
            )
            headers = {"Content-Type": "text/event-stream", **reply.headers}
            self._send(200, body + "data: [DONE]\n\n", headers, reply.cut)
            return
        if body is None:
            text = good_text(request) if reply.text is None else reply.text
            usage = {
                **reply.usage,
                "total_tokens": sum(v for v in reply.usage.values() if isinstance(v, int)),
            }
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            body = json.dumps(
                {
                    "id": "1", "object": "chat.completion", "created": 0, "model": MODEL,
                    "choices": [choice], "usage": usage,
                }
            )  # fmt: skip
        self._send(reply.status, body, reply.headers, reply.cut)

    def _send(
        self, status: int, body: str, headers: dict[str, str], cut: int | None = None
    ) -> None:
        data = body.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data if cut is None else data[:cut])
        self.close_connection = cut is not None


@pytest.fixture
def fake_model():
    """Yield a :class:`FakeModel` that gives good replies until a test changes them."""
    server = FakeModel().start()
    yield server
    if not server.closing.is_set():
        server.stop()
