"""``DocumentReader``: PDF, Office, HTML, mail, notebooks and more as LlamaIndex documents, one for each page."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import Document, MediaResource

from llama_index_contextual.app.folder import formats, read_file
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import DocumentError, MissingExtraError, amount, whole
from llama_index_contextual.utils.text import MARKDOWN_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.storage.kvstore.types import BaseKVStore

SECONDS: Final = 60.0  # that one document may take
MEGABYTES: Final = 2000
COLLECTION: Final = "conversions"  # in the key-value store
_SHOWN: Final = frozenset(
    {metadata.TITLE, "subject"}
)  # to an embedding; the rest does not describe the subject of a text
# Not multiprocessing: that imports the caller's script anew, and runs it where it has no "if __name__". Isolated, as
# "-c" would look for json in the working directory, which may be the folder that is read.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from llama_index_contextual.app.folder.formats import serve; serve(int(sys.argv[2]))"
)


class ConverterCrashedError(DocumentError):
    """A document cost the process that converted it; it would again."""


class ConversionProcess:
    """A process that converts documents, started when it is first needed. Threads wait for one another.

    A document that makes it hang, crash or grow costs the process, and the next document gets another one.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process: Any = None
        self._started_for = (
            0,
            0,
        )  # this process, which may have been forked since, and the megabytes
        self._jobs, self._last = 0, 0.0

    def convert(
        self, path: Path, suffix: str, seconds: float = SECONDS, megabytes: int = MEGABYTES
    ) -> dict[str, Any]:
        """A document as Markdown: ``parts`` with their places, and ``metadata``.

        Args:
            path: The file.
            suffix: What kind it is, as ``".pdf"``.
            seconds: What it may take of time.
            megabytes: And of memory, the converter's own included.

        Raises:
            DocumentError: It cannot be converted; why.
            ConverterCrashedError: It took too long, or the process with it.
        """
        job = json.dumps({"path": str(path), "suffix": suffix, "seconds": seconds})
        with self._guard:
            process, answer, code = self._running(megabytes), b"", 0
            self._last, self._jobs = time.monotonic(), self._jobs + 1
            limit = threading.Timer(seconds, process.kill)
            limit.start()
            try:
                with contextlib.suppress(OSError):
                    process.stdin.write(f"{job}\n".encode())
                    process.stdin.flush()
                    answer = process.stdout.readline()
            finally:
                limit.cancel()
                if not (is_answered := answer.endswith(b"\n")):
                    code = self.close()
            taken, self._last = time.monotonic() - self._last, time.monotonic()
        if not is_answered:
            why, setting = f"took longer than {seconds:g} seconds and was ended", "seconds"
            if taken < seconds:
                signalled = signal.Signals(-code).name if code < 0 else f"exit {code}"
                why = (
                    f"crashed ({signalled}), perhaps for want of more than {megabytes} MB of memory"
                )
                setting = "megabytes"
            raise ConverterCrashedError(
                f"its conversion {why}. Cure: ignore it, or DocumentReader({setting}=…) among readers=."
            )
        result: dict[str, Any] = json.loads(answer)
        if "problem" in result:
            raise DocumentError(result["problem"])
        return result

    def _running(self, megabytes: int) -> Any:
        """The process, or a new one after a crash, a fork, an idle time, other limits or many documents."""
        wanted = (os.getpid(), megabytes)
        is_old = self._jobs >= 300 or self._started_for != wanted  # noqa: PLR2004
        is_idle = time.monotonic() - self._last > formats.IDLE / 2  # it may be ending
        if self._process is None or is_old or is_idle or self._process.poll() is not None:
            if self._started_for[0] == wanted[0]:
                self.close()
            self._process = subprocess.Popen(  # noqa: S603  this Python, and our own words
                [sys.executable, "-I", "-c", _START, json.dumps(sys.path), str(megabytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._started_for, self._jobs = wanted, 0
        return self._process

    def close(self) -> int:
        """End the process; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        return int(process.wait())


_PROCESS: Final = ConversionProcess()  # of this process


class DocumentReader(BaseReader):
    """Read PDF, Word, PowerPoint, Excel, OpenDocument, HTML, EPUB, mail, notebooks, RTF, LaTeX, Org, reST and CSV.

    Each page, slide or sheet is a document of Markdown with its tables. ``HeadingAwareMarkdownNodeParser`` carries
    headings from page to page. Nothing of a document is run or fetched: it is converted in a process of its own, with
    limits of time, memory and size.

    Args:
        seconds: The most time that a file may take.
        megabytes: The most memory.
        conversions: A LlamaIndex key-value store. What is in it is not converted again, and needs no converter.
        keep: Whether new conversions are written to it.

    Raises:
        SettingError: A limit is not positive.

    Examples:
        >>> from llama_index.core import SimpleDirectoryReader
        >>> reader = DocumentReader()
        >>> loader = SimpleDirectoryReader(input_files=["examples/documents/mail.eml"], file_extractor={".eml": reader})
        >>> [page.metadata["subject"] for page in loader.load_data()]
        ['Dredging of the harbour']
    """

    def __init__(
        self,
        *,
        seconds: float = SECONDS,
        megabytes: int = MEGABYTES,
        conversions: BaseKVStore | None = None,
        keep: bool = True,
    ) -> None:
        self._limits = amount("seconds", seconds), whole("megabytes", megabytes)
        self.conversions = conversions
        self.keep = keep

    def load_data(
        self, file: Path | str, extra_info: dict[str, Any] | None = None, fs: Any = None
    ) -> list[Document]:
        """The parts of a file: pages of a PDF or of Word, slides, sheets, cells of a notebook, chapters.

        Args:
            file: It must be on this machine.
            extra_info: More metadata of all parts.
            fs: Must be None or local.

        Returns:
            Documents with ``page`` and ``page_label``, or ``slide``, ``sheet``, ``cell``; and with ``title``,
            ``author``, ``created``, ``modified`` of the document, ``subject``, ``sender``, ``to``, ``date`` of mail.
            The first has ``left_out`` where the text lacks something of the file: ``"3 pictures; 1 script"``.

        Raises:
            DocumentError: It is damaged, encrypted, empty, or takes more than the limits.
            MissingExtraError: The converter is not installed.
        """
        del fs
        path = Path(file)
        try:
            data = read_file(path)
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error
        return self.documents(path, data, {"file_name": path.name, **(extra_info or {})})

    def documents(
        self, path: Path, data: bytes, extra_info: Mapping[str, Any] | None = None
    ) -> list[Document]:
        """The parts of a file whose bytes were read already; see :meth:`load_data`."""
        converted = self.converted(path, data)
        documents, shared = list[Document](), {**converted["metadata"], **(extra_info or {})}
        left_out = shared.pop(metadata.LEFT_OUT, "")
        for text, place in converted["parts"]:
            values = {
                **shared,
                **place,
                **({metadata.PAGE_LABEL: str(*place.values())} if place else {}),
            }
            if left_out and not documents:
                values[metadata.LEFT_OUT] = left_out
            document = Document(
                text_resource=MediaResource(text=text, mimetype=MARKDOWN_TYPE),
                metadata=values,
                excluded_embed_metadata_keys=[
                    key for key in values if key not in {*_SHOWN, *(extra_info or ())}
                ],
                excluded_llm_metadata_keys=[
                    metadata.LEFT_OUT,
                    *([metadata.PAGE_LABEL] if place else []),
                ],
            )
            documents.append(document)
        return documents

    def converted(self, path: Path, data: bytes) -> dict[str, Any]:
        """A file's text and metadata: as they were kept, or converted now.

        Raises:
            DocumentError: It cannot be converted.
            MissingExtraError: The converter is not installed.
        """
        suffix = formats.suffix_of(path.name)
        if suffix not in formats.FORMATS:
            raise DocumentError(
                f"{suffix or 'its name'} is no format that is read. Cure: {', '.join(formats.FORMATS)}."
            )
        key = f"{hashlib.sha256(data).hexdigest()}{suffix} {formats.FORMATS[suffix]} {formats.REVISION}"
        kept: dict[str, Any] | None = (
            None if self.conversions is None else self.conversions.get(key, COLLECTION)
        )
        if kept is None or kept.get("limits", [*self._limits]) != [*self._limits]:
            if not (formats.FORMATS[suffix] == "markup" or formats.has_extra()):
                raise MissingExtraError(f"what reads {suffix} files", formats.EXTRA)
            try:
                kept = _PROCESS.convert(path.absolute(), suffix, *self._limits)
                if not any(text.strip() for text, _ in kept["parts"]):
                    raise DocumentError("it holds no text. Cure: ignore it.")
            except ConverterCrashedError as error:  # it would take as long each time
                kept = {"problem": str(error), "limits": [*self._limits]}
            if (
                read_file(path, len(data)) != data
            ):  # else another file's text would be kept for these bytes
                raise DocumentError("it changed while it was converted. Cure: refresh again.")
            if self.conversions is not None and self.keep:
                self.conversions.put(key, kept, COLLECTION)
        if "problem" in kept:
            raise ConverterCrashedError(kept["problem"])
        return kept
