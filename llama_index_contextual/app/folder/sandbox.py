"""The process in which documents are converted: what a document does to it, it does to nothing else.

A converter reads files of unknown origin. So it runs in a process with limits of time, memory and size, which
starts nothing, opens no connection and writes no file. A document that makes it hang, crash or grow costs the process,
and the next document gets another one. One process converts many documents.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from llama_index_contextual.app.folder import formats
from llama_index_contextual.errors import DocumentError

# Not multiprocessing: that imports the caller's script anew, and runs it where it has no "if __name__".
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from llama_index_contextual.app.folder.sandbox import serve; serve(int(sys.argv[2]))"
)
_IDLE: Final = 30  # seconds without work after which a process ends
_MOST_JOBS: Final = 300  # of one process: libraries leak
_MARGIN: Final = 5  # seconds of computing beyond the limit of time
_FORBIDDEN: Final = ("socket.connect", "subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.system")
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class ConverterCrashedError(DocumentError):
    """A document cost the process that converted it; it would again."""


class Limits(NamedTuple):
    """What one document may take.

    Attributes:
        seconds: Of time.
        megabytes: Of memory, the converter's own included.
    """

    seconds: float = 60.0
    megabytes: int = 2000


class ConversionProcess:
    """A process that converts documents, started when it is first needed. Threads wait for one another."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._megabytes = 0
        self._jobs = 0
        self._owner = os.getpid()

    def convert(self, path: Path, suffix: str, limits: Limits) -> formats.Conversion:
        """A document as Markdown.

        Args:
            path: The file.
            suffix: What kind it is, as ``".pdf"``.
            limits: What it may take.

        Raises:
            DocumentError: It cannot be converted; why.
            ConverterCrashedError: It took too long, or the process with it.
        """
        job = json.dumps({"path": str(path), "suffix": suffix, "seconds": limits.seconds})
        with self._guard:
            for is_last in (False, True):
                process = self._running(limits)
                answer = self._answer_to(process, job, limits.seconds)
                if answer:
                    break
                code = self._end()
                if code == -getattr(signal, "SIGALRM", 0) and not is_last:
                    continue  # it ended for want of work, just now
                raise ConverterCrashedError(_failure_message(answer, code, limits))
        result = json.loads(answer or b"{}")
        if "problem" in result:
            raise DocumentError(result["problem"])
        return formats.Conversion.of(result)

    def close(self) -> None:
        """End the process; the next document starts another one."""
        with self._guard:
            self._end()

    def _running(self, limits: Limits) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # of the process that this one was forked from
            self._process, self._owner = None, os.getpid()
        if self._process is not None and (
            self._process.poll() is not None or self._jobs >= _MOST_JOBS or self._megabytes != limits.megabytes
        ):
            self._end()
        if self._process is None:
            arguments = [json.dumps(sys.path), str(limits.megabytes)]
            self._process = subprocess.Popen(  # noqa: S603  this Python, and our own words
                [sys.executable, "-c", _START, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._answers, self._jobs, self._megabytes = queue.Queue(), 0, limits.megabytes
            reading = (self._process.stdout, self._answers)
            threading.Thread(target=_listen, args=reading, daemon=True, name="llama-index-contextual convert").start()
        self._jobs += 1
        return self._process

    def _answer_to(self, process: subprocess.Popen[bytes], job: str, seconds: float) -> bytes | None:
        """The answer; b"" where the process died, None where it took too long."""
        try:
            assert process.stdin is not None  # noqa: S101  for mypy
            process.stdin.write(job.encode() + b"\n")
            process.stdin.flush()
            return self._answers.get(timeout=seconds)
        except OSError:
            return b""
        except queue.Empty:
            return None

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2 if process.poll() is None else None)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return process.wait()


def _listen(pipe: IO[bytes], answers: queue.Queue[bytes]) -> None:
    """Put each answer into the queue, and b"" at the end."""
    try:
        while size := pipe.readline():
            answers.put(pipe.read(int(size)))
    except (OSError, ValueError):
        pass
    answers.put(b"")


def _failure_message(answer: bytes | None, code: int, limits: Limits) -> str:
    if answer is None:
        return (
            f"its conversion took longer than {limits.seconds:g} seconds and was ended. Cure: ignore it, or raise "
            "seconds under [documents]."
        )
    return (
        f"its conversion crashed ({signal.Signals(-code).name if code < 0 else f'exit {code}'}), perhaps for want of "
        f"more than {limits.megabytes} MB of memory. Cure: ignore it, or raise megabytes under [documents]."
    )


def serve(megabytes: int) -> None:
    """Convert what standard input names, a JSON object a line, until it ends; called in a process of its own."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    sys.dont_write_bytecode = True
    resource = None if sys.platform == "win32" else import_module("resource")
    if resource is not None:
        _lower(resource, resource.RLIMIT_AS, megabytes * 1_000_000)
        _lower(resource, resource.RLIMIT_CORE, 0)
        _lower(resource, resource.RLIMIT_FSIZE, 0)
    sys.addaudithook(_refuse)
    while True:
        if hasattr(signal, "alarm"):
            signal.alarm(_IDLE)
        line = sys.stdin.buffer.readline()
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        if not line:
            return
        job = json.loads(line)
        if resource is not None:  # who hangs after the asking process has died ends, too
            used = resource.getrusage(resource.RUSAGE_SELF)
            seconds = used.ru_utime + used.ru_stime + job["seconds"] + _MARGIN
            _lower(resource, resource.RLIMIT_CPU, int(seconds) + 1, hard=False)
        answer = json.dumps(_answer(job)).encode()
        answers.write(b"%d\n%s" % (len(answer), answer))
        answers.flush()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        converted = formats.converter_of(job["suffix"])(Path(job["path"]))
    except formats.ConversionError as error:
        return {"problem": str(error)}
    except RecursionError:
        return {"problem": "its elements are nested too deeply. Cure: ignore it."}
    except MemoryError:
        return {"problem": "its conversion needs too much memory. Cure: ignore it, or raise megabytes in [documents]."}
    except Exception as error:  # noqa: BLE001  anything can be wrong in a foreign document
        return {"problem": _problem(error, job["suffix"][1:])}
    if (
        sum(len(part.text) for part in converted.parts) > formats.MOST_CHARS
        or len(converted.parts) > formats.MOST_PARTS
    ):
        most = f"{formats.MOST_CHARS:,} characters of text, or {formats.MOST_PARTS:,} pages or sheets"
        return {"problem": f"it holds more than {most}. Cure: split it, or ignore it."}
    return converted.to_dict()


def _problem(error: Exception, kind: str) -> str:
    """The reason of a failed conversion: damage, where a library refused the file; a fault of ours elsewhere."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    seen = f"{type(error).__name__}: {error}"[:200]
    if Path(place.filename).parent != Path(__file__).parent:
        return f"it is damaged or no {kind} file ({seen})"
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"a fault of llama-index-contextual, not of the file ({where}: {seen}). Cure: report it, or ignore the file."


def _lower(resource: Any, what: int, value: int, *, hard: bool = True) -> None:
    most = resource.getrlimit(what)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    with contextlib.suppress(OSError, ValueError):  # macOS knows no limit of memory
        resource.setrlimit(what, (value, value if hard else most))


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _FORBIDDEN or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES):
        raise PermissionError(f"a converter may not do that ({event})")
