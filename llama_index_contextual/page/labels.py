"""Questions with answers that somebody has marked on the page, and what is measured with them."""

from __future__ import annotations

import json
import threading
from html import escape
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual import metadata
from llama_index_contextual.config import load_configuration
from llama_index_contextual.errors import ContextualError, SettingError
from llama_index_contextual.notes.writing import change, turn
from llama_index_contextual.report import render

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.config import Configuration

FILE: Final = "questions.jsonl"
NEEDED: Final = 30  # questions; with fewer a difference is mostly chance
_END_SECONDS: Final = 2.0


class Labels:
    """The file of marked questions in a folder, and the measuring that is at work with it.

    Args:
        folder: The documents; the file is ``questions.jsonl`` in it.
        config: Reads the configuration of a folder.
    """

    def __init__(self, folder: Path, config: Callable[[Path], Configuration] = load_configuration) -> None:
        self._folder, self._config = folder, config
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._job: dict[str, str] = {}
        self._ended = False

    @property
    def measuring(self) -> bool:
        """Return whether something is being measured."""
        return self._thread is not None and self._thread.is_alive()

    def state(self) -> dict[str, Any]:
        """Return how many questions there are, how many are needed, and what is measured or was."""
        questions = {json.dumps(line.get("question")) for line in self._lines() if isinstance(line, dict)}
        with self._guard:
            job = {**self._job, "running": self.measuring} if self._job else None
        return {"marked": len(questions), "needed": NEEDED, "file": FILE, "job": job}

    def line(self, question: str, node: BaseNode) -> str:
        """Return the line that says that a chunk answers a question, as ``evaluate`` reads it."""
        values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
        first, last = values.get(metadata.START_LINE), values.get(metadata.END_LINE)
        said = {"question": question.strip(), "path": metadata.path_of(values)}
        if page := values.get(metadata.PAGE_LABEL):  # lines are those of the page
            said["page"] = str(page)
        elif first:
            said["lines"] = f"{first}-{last}"
        return json.dumps(said, ensure_ascii=False)

    def of(self, question: str) -> set[str]:
        """Return the lines of a question, as :meth:`line` writes them."""
        return {
            json.dumps(line, ensure_ascii=False)
            for line in self._lines()
            if isinstance(line, dict) and line.get("question") == question.strip()
        }

    def mark(self, question: str, node: BaseNode, *, answers: bool) -> None:
        """Append the line of a question and a chunk, or take it out; all other bytes of the file stay.

        Raises:
            SettingError: There is no question, or the file is a link.
            StorageError: The file cannot be written; it is unharmed.
        """
        if not question:
            raise SettingError("the question is empty. Cure: search for something first")
        line = self.line(question, node).encode()

        def edit(before: bytes | None) -> bytes:
            lines = (before or b"").splitlines(keepends=True)
            others = [one for one in lines if one.strip() != line]
            if not answers:
                return b"".join(others)
            if len(others) < len(lines):
                return before or b""
            end = b"\n" if lines and not lines[-1].endswith(b"\n") else b""
            return b"".join(lines) + end + line + b"\n"

        with turn(self._folder):
            change(self._folder, FILE, edit, backup=lambda: False)

    def measure(self, kind: str) -> None:
        """Begin to evaluate or to tune with the questions, in a thread; :meth:`state` says how far it is.

        Raises:
            SettingError: There are too few questions, something is being measured, or the kind is unknown.
        """
        count = self.state()["marked"]
        with self._guard:
            if kind not in ("evaluate", "tune"):
                raise SettingError(f"kind={kind!r} is not known. Cure: 'evaluate' or 'tune'")
            if count < NEEDED:
                raise SettingError(f"{count} questions are marked. Cure: mark {NEEDED}; fewer show mostly chance")
            if self.measuring:
                raise SettingError("something is being measured. Cure: wait until it ends")
            self._job = {"kind": kind, "line": "It begins …"}
            self._thread = threading.Thread(target=self._measured, args=(kind,), name="measuring", daemon=True)
            self._thread.start()

    def end(self) -> bool:
        """Have the measuring stop soon; return whether it has."""
        self._ended = True
        if self._thread is not None:
            self._thread.join(_END_SECONDS)
        return not self.measuring

    def _measured(self, kind: str) -> None:
        from llama_index_contextual.evaluation import evaluate, load_questions, tune
        from llama_index_contextual.evaluation.comparison import report_values

        try:
            questions = load_questions(self._folder / FILE)
            if kind == "evaluate":
                comparison = evaluate(self._folder, questions, say=self._say, config=self._config)
                html = render("comparison_body.html", **report_values(comparison))
            else:
                tuned = tune(self._folder, questions, say=self._say, config=self._config)
                html = f"<pre>{escape(str(tuned))}</pre>"
                if tuned.is_more_than_chance:
                    command = f"llama-index-contextual tune {self._folder} -q {self._folder / FILE} --write"
                    html += f"<p>To keep this: <code>{escape(command)}</code></p>"
            outcome = {"html": html}
        except _EndedError:
            outcome = {"error": "It was ended."}
        except ContextualError as error:
            outcome = {"error": str(error)}
        except Exception as error:  # noqa: BLE001  of a library; the page says it
            outcome = {"error": f"{type(error).__name__}: {error}"}
        with self._guard:
            self._job = {"kind": kind, **outcome}

    def _say(self, line: str) -> None:
        if self._ended:
            raise _EndedError
        with self._guard:
            self._job = {**self._job, "line": line}

    def _lines(self) -> list[Any]:
        """Return what the lines of the file hold; those that are no JSON are left to ``evaluate`` to name."""
        file = self._folder / FILE
        if file.is_symlink() or not file.is_file():
            return []
        return [line for text in file.read_text("utf-8", errors="replace").split("\n") for line in _parsed(text)]


def _parsed(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []


class _EndedError(Exception):
    """The process ends."""
