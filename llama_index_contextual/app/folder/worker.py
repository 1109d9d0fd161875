"""The process that converts documents.

It has limits on time, memory and size, and cannot open connections, start programs or write files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from llama_index_contextual.app.folder.formats import ConversionError, known_formats
from llama_index_contextual.utils.errors import DocumentError

IDLE = 30  # seconds without work after which the process ends
_GRACE = 5  # extra seconds in which the caller can end a slow conversion
# Limits of a document. All of the Kubernetes documentation has half as many characters.
_MAX_CHARACTERS = 20_000_000
_MAX_PARTS = 20_000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FORBIDDEN = (
    "socket.connect",
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.system",
)


def serve(megabytes: int) -> None:
    """Convert the files named in standard input, one JSON object per line, until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print, which must not mix with the answers
    sys.dont_write_bytecode = True
    _limit_resources(megabytes)
    sys.addaudithook(_refuse)
    set_alarm = getattr(signal, "alarm", int)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        # End a conversion that hangs even if the calling process has died.
        set_alarm(int(job["seconds"]) + _GRACE)
        answer = convert(Path(job["path"]), job["suffix"])
        set_alarm(IDLE)
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()


def _limit_resources(megabytes: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    limits = {
        resource.RLIMIT_AS: megabytes * 1_000_000,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    for kind, value in limits.items():
        # macOS has no limit on memory. Other systems can have a lower one.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value))


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    is_writing = False
    if event == "open":
        flags = arguments[2]
        is_writing = isinstance(flags, int) and bool(flags & _WRITING)
    if is_writing or event in _FORBIDDEN:
        raise PermissionError(f"a converter is not allowed to do that ({event})")


def convert(path: Path, suffix: str) -> dict[str, Any]:
    """Return a document as plain data with its parts and metadata, or with a problem."""
    if not path.is_file():  # do not wait for a pipe
        return {"problem": "it is no longer a regular file. Refresh again."}
    try:
        conversion = known_formats()[suffix].convert(path)
    except Exception as error:  # noqa: BLE001  anything can be wrong in a foreign document
        return {"problem": problem_of(error, suffix[1:])}
    characters = sum(len(part.text) for part in conversion.parts)
    if characters > _MAX_CHARACTERS or len(conversion.parts) > _MAX_PARTS:
        limits = f"{_MAX_CHARACTERS:,} characters of text, or {_MAX_PARTS:,} pages or sheets"
        return {"problem": f"it contains more than {limits}. Split it, or ignore it."}
    return conversion.to_dict()


def problem_of(error: Exception, kind: str) -> str:
    """Return the reason why a conversion failed.

    If a library rejected the file, it is damaged. Other errors are faults of this package.
    """
    if isinstance(error, ConversionError | DocumentError):
        return str(error)
    if isinstance(error, RecursionError | MemoryError):
        return (
            "it is nested too deeply, or needs too much memory. "
            "Ignore it, or pass DocumentReader(megabytes=…) among readers=."
        )
    shown = f"{type(error).__name__}: {error}"[:200]
    raised = traceback.extract_tb(error.__traceback__)[-1]
    place = Path(raised.filename)
    is_ours = Path(__file__).parent in place.parents
    if is_ours and type(error).__module__ == "builtins":
        where = f"{place.name}, line {raised.lineno}"
        return (
            f"a fault of llama-index-contextual, not of the file ({where}: {shown}). "
            "Report it, or ignore the file."
        )
    advice = "Save it again in its program, or ignore it."
    return f"it is damaged or not in {kind} format ({shown}). {advice}"
