"""Sessions with agents become dated notes. To import a transcript again changes nothing; a longer one is continued.

A note is named after its day and session: ``sessions/2026-04-09-claude-code-1f0a….md``. Its front matter says how many
messages it holds and their digest. What is new in a transcript is appended, so what people wrote into the note stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.notes import transcripts
from llama_index_contextual.app.notes.writing import change, turn, writable
from llama_index_contextual.chunking import with_fences
from llama_index_contextual.errors import SettingError, StorageError
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Reader = Callable[[Path, list[str]], Iterator[transcripts.Session]]

FOLDER: Final = "sessions"
_READERS: Final[dict[str, tuple[Reader, str]]] = {
    "claude-code": (transcripts.read_claude_code, "*.jsonl"),
    "codex": (transcripts.read_codex, "rollout-*.jsonl"),
    "chatgpt": (transcripts.read_chatgpt, transcripts.EXPORTS),
    "claude": (transcripts.read_claude, transcripts.EXPORTS),
}
FORMATS: Final = tuple(_READERS)
_NAMED: Final = re.compile(r"-([0-9a-f]{10})\.md$")
_STATE: Final = re.compile(r"^messages: (\d{1,9})\ndigest: ([0-9a-f]{16})$", re.MULTILINE)
_TITLE_CHARS: Final = 80
_LEVELS: Final = 6  # of headings
_BLOCK: Final = re.compile(r"(?:`{3}|~{3}|[-*+>|] |\||\d{1,9}[.)] |    |\t)")


@dataclass(slots=True)
class ImportReport:
    """What an import did.

    Attributes:
        created: Paths of notes that were made.
        extended: Paths of notes that a longer session continued.
        replaced: Paths of notes whose session is another one now, as its messages were changed. There are backups.
        unchanged: How many notes hold all of their session already.
        left: Paths of notes that somebody has written anew, so that it is not known what they hold.
        empty: How many sessions hold no text of anybody.
        messages: How many messages were written.
        secrets: How many secrets were taken out of these.
        damaged: What could not be read: ``FILE:LINE (reason)``.
    """

    created: list[str] = field(default_factory=list)
    extended: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    unchanged: int = 0
    left: list[str] = field(default_factory=list)
    empty: int = 0
    messages: int = 0
    secrets: int = 0
    damaged: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [
            f"{len(self.created)} new", f"{len(self.extended)} extended", f"{len(self.replaced)} replaced",
            f"{self.unchanged} as before", f"{len(self.left)} left alone", f"{self.empty} empty",
        ]  # fmt: skip
        total = len(self.created) + len(self.extended) + len(self.replaced) + self.unchanged + len(self.left)
        shown = ", ".join(part for part in parts if not part.startswith("0 ")) or "nothing to import"
        secrets = f", {counted(self.secrets, 'secret')} redacted" if self.secrets else ""
        return (
            f"{counted(total + self.empty, 'session')}: {shown}. {counted(self.messages, 'message')} written{secrets}"
        )


def import_transcripts(folder: str | Path, format: str, source: str | Path) -> ImportReport:  # noqa: A002
    """Write the sessions of a transcript into a folder of notes, below ``sessions/``.

    Args:
        folder: The notes. It is there.
        format: ``"claude-code"``, ``"codex"``, ``"chatgpt"`` or ``"claude"``.
        source: A transcript, an archive of an export, or a folder with some. Or the JSON object that a hook of Claude
            Code or Codex tells: it names the transcript.

    Raises:
        SettingError: The format is not known, or there is no such folder or transcript.
        LockedError: Others have been writing for half a minute.
        StorageError: A note cannot be read or written, or a transcript cannot be read.
    """
    if format not in _READERS:
        raise SettingError(f"format={format!r} is not known. Cure: {', '.join(FORMATS)}")
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise SettingError(f"{folder} is no folder of notes. Cure: the folder where sessions/ shall be")
    read, pattern = _READERS[format]
    report = ImportReport()
    notes = _notes_by_session(folder)
    for file in _files(source, pattern):
        for session in _sessions(read, file, report.damaged):
            _write(folder, format, session, notes, report)
    return report


def _sessions(read: Reader, file: Path, damaged: list[str]) -> Iterator[transcripts.Session]:
    try:
        yield from read(file, damaged)
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror}). Cure: make it readable") from error


def _files(source: str | Path, pattern: str) -> list[Path]:
    text = str(source)
    file = _file_of_event(text) if text.lstrip().startswith("{") else Path(text).expanduser()
    files = sorted(file.rglob(pattern)) if file.is_dir() else [file]
    if not files or not files[0].is_file():
        raise SettingError(f"{file} holds no transcript ({pattern}). Cure: a file or a folder that does")
    return files


def _file_of_event(text: str) -> Path:
    """Return the transcript that a hook's event names: by path, or by Codex's number of the session."""
    try:
        event = json.loads(text)
    except ValueError as error:
        raise SettingError(f"the event {text[:80]!r} is no JSON ({error}). Cure: what the hook was given") from None
    if isinstance(path := event.get("transcript_path"), str):
        return Path(path).expanduser()
    session = str(event.get("thread-id") or "")
    sessions = Path(os.environ.get("CODEX_HOME") or "~/.codex").expanduser() / "sessions"
    files = sorted(sessions.rglob(f"rollout-*-{session}.jsonl")) if re.fullmatch(r"[\w-]+", session) else []
    if not files:
        raise SettingError(
            f"the event {text[:80]!r} names no transcript below {sessions}. Cure: one with transcript_path or thread-id"
        )
    return files[-1]


def _notes_by_session(folder: Path) -> dict[str, str]:
    """Return the notes of sessions wherever they are by now, by the number that ends their names."""
    notes: dict[str, str] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if match := _NAMED.search(name):
                notes[match[1]] = (Path(place) / name).relative_to(folder).as_posix()
    return notes


def _write(folder: Path, kind: str, session: transcripts.Session, notes: dict[str, str], report: ImportReport) -> None:
    """Write one session, and say in the report what became of it."""
    if not session.messages:
        report.empty += 1
        return
    page = _Page(kind, session)
    number = hashlib.sha256(f"{kind} {session.id}".encode("utf-8", "replace")).hexdigest()[:10]
    path = notes.setdefault(number, f"{FOLDER}/{page.messages[0].time.date()}-{kind}-{number}.md")
    with turn(folder):
        change(folder, path, page.edit, backup=lambda: page.outcome == "replaced")
    if page.outcome == "unchanged":
        report.unchanged += 1
    else:
        getattr(report, page.outcome).append(path)
    report.messages += len(page.messages) - page.start
    report.secrets += sum(page.secrets[page.start :])


class _Page:
    """The note of a session.

    Attributes:
        messages: Printable and without secrets, at local time.
        secrets: How many were taken out of each message.
        outcome: What the last :meth:`edit` made of the note, as a field of :class:`ImportReport`.
        start: The first message that the last edit wrote.
    """

    def __init__(self, kind: str, session: transcripts.Session) -> None:
        clean = [transcripts.redact(writable(message.text)) for message in session.messages]
        self.messages = [
            transcripts.Message(message.speaker, text, message.time.astimezone())
            for message, (text, _) in zip(session.messages, clean, strict=True)
        ]
        self.secrets = [count for _, count in clean]
        self.outcome, self.start = "created", 0
        self._kind, self._session = kind, session

    def edit(self, before: bytes | None) -> bytes:
        """Return the note with what is new in the session."""
        text = "" if before is None else before.decode("utf-8", "surrogateescape")
        state = _STATE.search(text.partition("\n---\n")[0])
        self.outcome, self.start = ("created", 0) if before is None else self._compare(state)
        if self.start == len(self.messages):
            return before or b""
        if state and self.start:
            text = text[: state.start()] + self._state() + text[state.end() :].rstrip() + "\n\n"
        else:
            text = self._head()
        return (text + self._body()).encode("utf-8", "surrogateescape")

    def _compare(self, state: re.Match[str] | None) -> tuple[str, int]:
        """Return what is to be done with a note that says how much it holds, and the first message to write."""
        everything = len(self.messages)
        if state is None:
            return "left", everything
        count, digest = int(state[1]), state[2]
        same = self._digest(count) == digest
        if everything < count or (everything == count and same):
            return "unchanged", everything
        return ("extended", count) if same else ("replaced", 0)

    def _head(self) -> str:
        question = next((message.text for message in self.messages if message.speaker == "User"), "")
        title = _headline(transcripts.redact(writable(self._session.title))[0] or question)
        facts = {"title": title, "session": self._session.id, "project": self._session.project}
        values = {
            key: writable(transcripts.redact(value)[0]).replace("\n", " ") for key, value in facts.items() if value
        }
        lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
        lines += [f"date: {self.messages[0].time.date()}", f"source: {self._kind}", self._state()]
        return "\n".join(["---", *lines, "---", "", f"# {title}", "", ""])

    def _state(self) -> str:
        return f"messages: {len(self.messages)}\ndigest: {self._digest(len(self.messages))}"

    def _digest(self, count: int) -> str:
        lines = (json.dumps([message.speaker, message.text]) for message in self.messages[:count])
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def _body(self) -> str:
        """Return the messages to write as Markdown: a heading for each day, and who speaks when."""
        blocks: list[str] = []
        for number in range(self.start, len(self.messages)):
            message, before = self.messages[number], self.messages[number - 1] if number else None
            new_day = before is None or message.time.date() != before.time.date()
            if new_day:
                blocks.append(f"## {message.time.date()}")
            text = _tame(message.text)
            if new_day or (before and before.speaker != message.speaker):
                lead = f"**{message.speaker}** {message.time:%H:%M}:"
                text = f"{lead}\n\n{text}" if _BLOCK.match(text) else f"{lead} {text}"
            blocks.append(text)
        return "\n\n".join(blocks) + "\n"


def _headline(text: str) -> str:
    """Return the first line of a text, or its beginning: a secret is out of it before it is cut."""
    line = next((line for line in map(str.strip, text.split("\n")) if line), "").lstrip("# ") or "Session"
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1].rsplit(" ", 1)[0] + "…"


def _tame(text: str) -> str:
    """Return a text that stays what it is inside of a note: it makes no heading, and leaves no fence or tag open."""
    lines: list[str] = []
    fence = ""
    for line, fence, is_code in with_fences(text.strip("\n").split("\n")):  # noqa: B007  the last one counts
        if is_code:
            pass
        elif (title := _title(line)) is not None:
            line = f"**{title}**" if title else ""  # noqa: PLW2901
        elif line.lstrip().startswith("<"):
            line = line.replace("<", "\\<", 1)  # noqa: PLW2901
        elif lines and lines[-1].strip() and len(set(line.strip())) == 1 and line.strip()[0] in "=-":
            lines.append("")
        lines.append(line)
    return "\n".join([*lines, *([fence] if fence else [])])


def _title(line: str) -> str | None:
    """Return the words of a heading; None where a line is none."""
    marks, _, words = line.strip().replace("\t", " ").partition(" ")
    if not marks or marks.strip("#") or len(marks) > _LEVELS or line.startswith(("    ", "\t")):
        return None
    words, _, end = f" {words.strip()}".rpartition(" ")
    return f"{words} {end if end.strip('#') else ''}".strip()
