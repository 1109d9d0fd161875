"""The server of benchmarks/context_cost.py: counts what a chat costs, read by a real model or only counted."""

from __future__ import annotations

import json
import re
import sys
import threading
import urllib.request
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from common import send_json
from llama_index.core.utils import get_tokenizer

from llama_index_contextual.context.prompts import count_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

Reader: TypeAlias = Literal["count", "llama.cpp"]

ANSWER = (
    "Explains this part of the chapter to readers who look for what it is about and for how it fits the whole book."
)


@dataclass
class Cost:
    """What one run cost."""

    calls: int = 0
    sent: int = 0
    cached: int = 0
    written: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


class Server(ThreadingHTTPServer):
    """OpenAI's chat interface: counts what it is asked, and has a stand-in answer.

    Args:
        upstream: A llama.cpp server that reads the prompts; without one they are only counted.
        prefix_cache: Whether what a prompt shares with the one before is spared.
    """

    daemon_threads = True

    def __init__(self, upstream: str | None, *, prefix_cache: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.prefix_cache = prefix_cache
        self.total = Cost()
        self.lock = threading.Lock()  # one slot: one request after the other
        self.before: list[int] = []

    @property
    def api_base(self) -> str:
        """Base URL for clients."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Read a prompt and answer it."""
        prompt = "\n".join(_text(message) for message in body["messages"])
        numbers = re.findall(r'<chunk number="(\d+)"', prompt) or [""]
        answer = "\n".join(f"{number}: {ANSWER}" if number else ANSWER for number in numbers)
        written = count_tokens(answer)
        with self.lock:
            sent, cached = self._read(prompt) if self.upstream is None else self._have_read(body, written)
            self.total += Cost(1, sent, cached, written)
        usage = {"prompt_tokens": sent, "completion_tokens": written, "total_tokens": sent + written}
        message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": "counting"}
        return {**head, "choices": [choice], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}}

    def _read(self, prompt: str) -> tuple[int, int]:
        tokens = get_tokenizer()(prompt)
        pairs = zip(tokens, self.before, strict=False)
        cached = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.before = tokens if self.prefix_cache else []
        return len(tokens), cached

    def size(self, text: str) -> int:
        """How many tokens a text is to this server."""
        if self.upstream is None:
            return count_tokens(text)
        empty, full = ({"messages": [{"role": "user", "content": part}]} for part in ("", text))
        return self._have_read(full, 1)[0] - self._have_read(empty, 1)[0]

    def _have_read(self, body: dict[str, Any], tokens: int) -> tuple[int, int]:
        options = {"max_tokens": tokens, "ignore_eos": True, "cache_prompt": self.prefix_cache}
        data = json.dumps({"messages": body["messages"], **options}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.upstream}/v1/chat/completions", data, headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=3600) as answer:  # noqa: S310
            usage = json.load(answer)["usage"]
        assert usage["completion_tokens"] == tokens
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        send_json(self, {"data": []})

    def do_POST(self) -> None:
        send_json(self, self.server.chat(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


@contextmanager
def serve(reader: Reader, *, prefix_cache: bool) -> Iterator[Server]:
    """Start a server that has read nothing yet."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    servers = import_module("servers")  # the tests' own

    with nullcontext(None) if reader == "count" else servers.llama_cpp() as upstream:
        server = Server(upstream, prefix_cache=prefix_cache)
        with servers.served(server):
            yield server
