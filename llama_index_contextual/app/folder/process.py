"""The calling side of the process that converts documents."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from llama_index_contextual.app.folder.worker import IDLE
from llama_index_contextual.utils.errors import DocumentError

SECONDS = 60.0  # that one document may take
MEGABYTES = 2000
_MAX_JOBS = 300  # per process
# Multiprocessing is not used, because it would import the caller's script again, and run it if it
# has no "if __name__". Python runs isolated ("-I"), because "-c" would otherwise look for json in
# the working directory, which can be the folder that is being read.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from llama_index_contextual.app.folder.worker import serve; serve(int(sys.argv[2]))"
)


class ConverterCrashedError(DocumentError):
    """The process that converted a document was killed or crashed. It would happen again."""


class ConversionProcess:
    """A process that converts documents, started when it is first needed.

    It converts one document at a time, so threads wait for each other. If a document makes it hang,
    crash or run out of memory, the next document gets a new process.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the id of the process that started it, to detect a fork
        self._megabytes = 0
        self._jobs = 0
        self._last_use = 0.0

    def convert(
        self, path: Path, suffix: str, seconds: float = SECONDS, megabytes: int = MEGABYTES
    ) -> dict[str, Any]:
        """Return a document as Markdown: ``parts`` with their places, and ``metadata``.

        Args:
            path: The file.
            suffix: The format, such as ``".pdf"``.
            seconds: The maximum time.
            megabytes: The maximum memory, including that of the converter itself.

        Raises:
            DocumentError: The file cannot be converted.
            ConverterCrashedError: The conversion took too long, or its process crashed.
        """
        job = json.dumps({"path": str(path), "suffix": suffix, "seconds": seconds})
        with self._guard:
            process = self._running(megabytes)
            start = time.monotonic()
            answer = _ask(process, job, seconds)
            self._last_use = time.monotonic()
            self._jobs += 1
            is_answered = answer.endswith(b"\n")
            exit_code = 0 if is_answered else self.close()
        if not is_answered:
            if self._last_use - start >= seconds:
                why = f"took longer than {seconds:g} seconds and was ended"
                setting = "seconds"
            else:
                signalled = (
                    signal.Signals(-exit_code).name if exit_code < 0 else f"exit {exit_code}"
                )
                why = f"crashed ({signalled}), perhaps because it needs more than {megabytes} MB"
                setting = "megabytes"
            raise ConverterCrashedError(
                f"its conversion {why}. "
                f"Ignore it, or pass DocumentReader({setting}=…) among readers=."
            )
        result: dict[str, Any] = json.loads(answer)
        if "problem" in result:
            raise DocumentError(result["problem"])
        return result

    def _running(self, megabytes: int) -> subprocess.Popen[bytes]:
        """Return the running process, or a new one after a crash, fork, pause or many documents."""
        is_mine = self._owner == os.getpid()
        is_idle = time.monotonic() - self._last_use > IDLE / 2  # it may be about to end
        is_fresh = is_mine and self._megabytes == megabytes and self._jobs < _MAX_JOBS
        if self._process is not None and is_fresh and not is_idle and self._process.poll() is None:
            return self._process
        if is_mine:
            self.close()
        self._process = subprocess.Popen(  # noqa: S603  this Python with fixed arguments
            [sys.executable, "-I", "-c", _START, json.dumps(sys.path), str(megabytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._owner = os.getpid()
        self._megabytes = megabytes
        self._jobs = 0
        return self._process

    def close(self) -> int:
        """End the process and return its exit code."""
        process = self._process
        self._process = None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return process.wait()


def _ask(process: subprocess.Popen[bytes], job: str, seconds: float) -> bytes:
    """Return the line that a process answers, or part of it if the process dies or times out."""
    if process.stdin is None or process.stdout is None:
        return b""
    limit = threading.Timer(seconds, process.kill)
    limit.start()
    try:
        with contextlib.suppress(OSError):
            process.stdin.write(f"{job}\n".encode())
            process.stdin.flush()
            return process.stdout.readline()
        return b""
    finally:
        limit.cancel()
