"""What commands share: which index, what narrows a question, the options of settings, and everything that is printed.

Nothing in a name or a text commands the terminal.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

from llama_index_contextual.app.settings import SETTINGS
from llama_index_contextual.app.settings.loading import load_configuration, user_storage
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.app.settings import Configuration

EXIT_INCOMPLETE: Final = 3
EXIT_INTERRUPTED: Final = 130  # what a shell reports for a program that SIGINT ended
COMMANDS: Final[list[Callable[..., None]]] = []

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page to look at to this file.")]
ListSkipped = Annotated[
    bool, typer.Option("--list-skipped", help="Name the files that are not read, and what is left out of others.")
]
_REMEMBERED: Final = ("files", "chunks", "context", "embed_model")
_WHICH: Final = "The folder that was indexed. Default: that of --storage, else this one"
_UNSET: Final = ("storage", "path", "tag", "since", "until", "where", "port")  # options of no setting
messages = Console(stderr=True, soft_wrap=True, highlight=False)
# Beyond those that JSON escapes by itself: of terminals, of direction, and those without a shape.
_UNSEEN: Final = re.compile("[\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises ``KeyboardInterrupt`` within, for work that has to end in order; elsewhere it ends the process."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a command that a shell runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# Options


@dataclass(frozen=True)
class Target:
    """The index that a command is about: a group of options (see :func:`with_options`)."""

    option: Annotated[Path | None, typer.Option("--folder", "-f", metavar="PATH", help=_WHICH)] = None
    storage: Annotated[Path | None, typer.Option(help="Where the index is. Default: FOLDER/.contextual")] = None
    settings: dict[str, Any] = field(default_factory=dict)
    """The options of settings, by key; None is not set."""

    @property
    def named(self) -> Path | None:
        """The folder that was named; None where none was."""
        return self.option

    @property
    def folder(self) -> Path | None:
        """The folder whose index is searched; None for that of the storage, or of the user's ``[collections]``."""
        if self.named or self.storage is not None:
            return self.named
        here = Path.cwd()
        is_indexed = (here / ".contextual").is_dir()
        return None if not is_indexed and load_configuration(user_storage())["collections"] else here

    @property
    def configuration(self) -> Callable[[Path], Configuration]:
        """The reader of the configuration of a folder."""
        return partial(load_configuration, options=self.settings)

    def open(self, **options: Any) -> ContextualIndex:
        """Open the index.

        Args:
            **options: More of ``ContextualIndex.open``; ``folder`` where the command knows which it is.
        """
        from llama_index_contextual.app.index import ContextualIndex  # slow: it imports LlamaIndex

        options = options if "folder" in options else {"folder": self.folder, **options}
        return ContextualIndex.open(storage=self.storage, config=self.configuration, **options)


@dataclass(frozen=True)
class NamedTarget(Target):
    """The same, where the folder may also be the command's argument."""

    argument: Annotated[Path | None, typer.Argument(metavar="folder", help=_WHICH)] = None

    @property
    def named(self) -> Path | None:
        """The folder that was named; None where none was.

        Raises:
            SettingError: Two are named.
        """
        if self.option and self.argument:
            cure = f"one index of both, index {self.argument} {self.option} --storage PLACE, and --storage PLACE here"
            raise SettingError(f"the folder is named more than once. Cure: {cure}")
        return self.option or self.argument


@dataclass(frozen=True)
class Narrowed:
    """Which documents a question is about: a group of options."""

    path: Annotated[
        list[str] | None, typer.Option(help="Only files with this in their path, such as people/; of several any.")
    ] = None
    tag: Annotated[
        list[str] | None, typer.Option(help="Only files with this tag, or one below it; of several all.")
    ] = None
    since: Annotated[str, typer.Option(help="Only dated files, from this day: 2026-04-09, or 'last week'.")] = ""
    until: Annotated[str, typer.Option(help="Only dated files, up to this day.")] = ""
    where: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only by front matter: rating>=4; several times.")
    ] = None

    def filters(self) -> MetadataFilters | None:
        """The filters.

        Raises:
            SettingError: One cannot work.
        """
        from llama_index_contextual.memory import note_filters

        several = {"path": self.path or (), "tag": self.tag or (), "where": self.where or ()}
        return note_filters(since=self.since, until=self.until, **several)


def _option_of(key: str) -> Any:
    """The type of a command's argument: the option of a setting, as the setting is declared."""
    setting = SETTINGS[key]
    kind = getattr(setting.kind, "__origin__", setting.kind)
    default = setting.computed or json.dumps(setting.default, ensure_ascii=False)
    index = "the index's own, else " if (setting.table or key) in _REMEMBERED else ""
    text = f"{setting.meaning} Default: {index}{default}".replace("`", "").replace("[]", "none")
    values = list[str] if get_origin(kind) is tuple else kind if kind in (int, float, bool) else str
    return Annotated[values | None, typer.Option(*setting.flags.split(), help=text)]


def with_options(*keys: str, without: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command with the options of its groups and those of some settings, for its :class:`Target`.

    A group is an argument whose type is a dataclass of options. So commands that are about the same have the same.

    Args:
        *keys: Of the settings.
        without: An option of a group that the command does not have.
    """
    names = {SETTINGS[key].option.strip("-").replace("-", "_"): key for key in keys}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options = dict[str, Parameter]()
        groups = dict[str, tuple[Any, list[str]]]()

        def add(name: str, default: Any, annotation: Any) -> None:
            options[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

        for one in signature(command, eval_str=True).parameters.values():
            if not is_dataclass(one.annotation):
                add(one.name, one.default, one.annotation)
                continue
            types = get_type_hints(one.annotation, include_extras=True)
            members = [each for each in fields(one.annotation) if each.default is not MISSING and each.name != without]
            groups[one.name] = one.annotation, [each.name for each in members]
            for each in members:
                add(each.name, each.default, types[each.name])
        for name, key in names.items():
            add(name, None, _option_of(key))

        @wraps(command)
        def run(**arguments: Any) -> None:
            settings = {key: arguments.pop(name) for name, key in names.items()}
            for name, (group, members) in groups.items():
                more = {"settings": settings} if issubclass(group, Target) else {}
                arguments[name] = group(**{member: arguments.pop(member) for member in members}, **more)
            command(**arguments)

        vars(run)["__signature__"] = Signature([*options.values()])  # typer reads it
        COMMANDS.append(run)
        return run

    return decorate


# Output


def print_text(text: str, end: str = "\n") -> None:
    """Print lines, or with another end a part of a line at once."""
    sys.stdout.write(f"{printable(text)}{end}")
    if not end:
        sys.stdout.flush()


def print_styled(*parts: str | tuple[str, str], indent: int = 0) -> None:
    """Print a line of texts and of texts with a style, wrapped at the width of a terminal; plain where it is none."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    text = Text.assemble(*((printable(part, one_line="\n" in part), style) for part, style in pairs))
    if not sys.stdout.isatty():
        sys.stdout.write(f"{' ' * indent}{text.plain}".rstrip() + "\n")
        return
    from rich.padding import Padding

    Console(highlight=False).print(Padding(text, (0, 0, 0, indent), expand=False))


def print_report(report: Any, text: str | None = None, *, as_json: bool = True) -> None:
    """Print plain data, or what has ``to_dict``, as JSON or in words, at once, since ``--watch`` goes on."""
    if as_json or text is None:
        is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        data = report.to_dict() if hasattr(report, "to_dict") else report
        shown = json.dumps(data, indent=2, ensure_ascii=not is_unicode)
        sys.stdout.write(_UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], shown) + "\n")
    else:
        print_text(text)
    sys.stdout.flush()


def tell(text: str, label: str = "", style: str = "yellow") -> None:
    """Write a message to standard error."""
    messages.print(Text.assemble((label, style), " " if label and text else "", printable(text)))


def note(text: str) -> None:
    """Write a note to standard error, where there is one."""
    if text:
        tell(text, "note:")


def skipped_line(settings: IndexSettings, *, names: bool) -> str:
    """How many files of a folder are not read, by their kinds, or as a vault's templates; "" for none.

    Args:
        settings: Of the index of the folder.
        names: Whether each of them is written, and what the text of other files lacks.
    """
    from llama_index_contextual.app.folder.formats import LEFT_OUT
    from llama_index_contextual.app.folder.walk import summary_of_skipped
    from llama_index_contextual.metadata import PATH

    found, lacking = settings.found(), set[tuple[str, str]]()
    paths, not_notes = found.skipped, found.not_notes
    for path in sorted([*paths, *not_notes]) if names else ():
        tell(path, "not read:")
    if names and settings.exists:
        with settings.database.reading() as snapshot:
            rows = snapshot.rows()
            lacking = {*zip(snapshot.values(PATH, rows), snapshot.values(LEFT_OUT, rows), strict=True)}
    for path, parts in sorted((path, parts) for path, parts in lacking if parts):
        tell(f"{path}: {parts}", "left out:")
    vault = f"{counted(len(not_notes), 'file')} of Obsidian's templates and drawings not read"
    line = "; ".join(filter(None, (summary_of_skipped(paths), vault if not_notes else "")))
    return line + ("" if names or not line else "; --list-skipped names them")


def tell_error(error: Exception) -> None:
    """Write an error as one message. It names settings as the command line does."""
    text = error.shown(_as_option) if isinstance(error, SettingError) else str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}. Cure: name a place that exists and that you may use."
    tell(text, "error:", "red")


def _as_option(name: str, value: str) -> str:
    """A setting as the command line names it, with its value as a shell would have it."""
    named = [one.option or one.key for one in SETTINGS.values() if one.name == name]
    option = max(named, default=f"--{name}" if name in _UNSET else name, key=lambda text: text[:2] == "--")
    plain = value if any(map(str.isspace, value)) else value.strip("'")
    return plain if name == "folder" else f"{option}={plain}"  # it is an argument, too


def tell_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show our own warnings as one line. A user cannot mend those of libraries, so they are not shown."""
    if issubclass(category, ContextualWarning):
        tell(str(message), "warning:")


class _Once(logging.Handler):
    """Writes what parts of this package log, each once: a damaged file is met by several of them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._write = cache(lambda text: tell(text, "warning:"))

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


def write_log() -> None:
    """Write what this package logs in the same way as its warnings."""
    logger = logging.getLogger("llama_index_contextual")
    logger.handlers[:] = [_Once()]
    logger.propagate = False


def write_page(file: Path, text: str) -> None:
    """Write a page to a file and say so."""
    file.write_text(text, "utf-8", errors="replace")
    tell(f"Written: {file}")
