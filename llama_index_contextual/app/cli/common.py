"""What the commands share: options, an open index, and the one place that prints."""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cached_property, partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

from llama_index_contextual.app.settings.loading import load_configuration, user_storage
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.index import ContextualIndex, Freshness
    from llama_index_contextual.app.settings.schema import Configuration

EXIT_INCOMPLETE: Final = 3
EXIT_INTERRUPTED: Final = 130  # what a shell reports for a program that SIGINT ended

messages = Console(stderr=True, soft_wrap=True, highlight=False)

Config = Annotated[Path | None, typer.Option(help="A configuration file. Default: FOLDER/contextual.toml")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Question = Annotated[list[str], typer.Argument(help="What you want to find; no quotes are needed.")]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page to look at to this file.")]
RERANKERS: Final = "cohere:MODEL, jina:MODEL, llama.cpp:URL, fastembed:MODEL, sentence-transformers:MODEL or llm"
All = Annotated[bool, typer.Option("--all", help="Show every setting.")]
ListSkipped = Annotated[bool, typer.Option("--list-skipped", help="Name the files that are not read.")]
_SHAPING: Final = ("files", "chunks", "context", "context_options", "embed_model")  # what an index remembers
_WHICH: Final = "The folder that was indexed. Default: that of --storage, else this one"


@dataclass(frozen=True)
class Target:
    """The index that a command is about: a group of options (see :func:`with_options`)."""

    folders: Annotated[list[Path] | None, typer.Option("--folder", "-f", metavar="PATH", help=_WHICH)] = None
    storage: Annotated[Path | None, typer.Option(help="Where the index lives. Default: FOLDER/.contextual")] = None
    config: Config = None
    settings: dict[str, Any] = field(default_factory=dict)
    """What the options of settings say, by key; None is not said."""

    @property
    def _given(self) -> list[Path]:
        return [*(self.folders or ())]

    @property
    def named(self) -> Path | None:
        """Return the folder that was named; None where none was.

        Raises:
            SettingError: Several are named.
        """
        named = self._given
        if len(named) > 1:
            raise SettingError(
                "the folder is named more than once. Cure: one index of them all, index "
                f"{' '.join(map(str, named))} --storage PLACE, and then --storage PLACE instead of --folder."
            )
        return named[0] if named else None

    @cached_property
    def folder(self) -> Path | None:
        """Return the folder whose index is asked; None for that of the storage, or of the user's own ``[collections]``.

        Where none is named it is the next folder above with an index of this user's. An index of another user is passed
        over: who made it could have it answer from anywhere below.
        """
        from llama_index_contextual.app.index import DEFAULT_NAME, Layout

        if self.named or self.storage is not None:
            return self.named
        start = Path.cwd()
        for folder in (start, *start.parents):
            with suppress(OSError):
                owners = {path.stat().st_uid for path in (folder, Layout(folder / DEFAULT_NAME).database)}
                if not any(map(is_owned_by_another_user, owners)):
                    if folder != start:
                        tell(f"the index of {folder}")
                    return folder
        return None if load_configuration(user_storage())["collections"] else start

    @property
    def configuration(self) -> Callable[[Path], Configuration]:
        """Return what reads the configuration of a folder."""
        return partial(load_configuration, file=self.config, options=self.settings)

    def open(self, **options: Any) -> ContextualIndex:
        """Open the index.

        Args:
            **options: More of ``ContextualIndex.open``; ``folder`` where the command says which it is.
        """
        from llama_index_contextual.app.index import ContextualIndex  # slow: it imports LlamaIndex

        options = options if "folder" in options else {"folder": self.folder, **options}
        return ContextualIndex.open(storage=self.storage, config=self.configuration, **options)


@dataclass(frozen=True)
class NamedTarget(Target):
    """The same, where the folder may also be the command's argument."""

    argument: Annotated[Path | None, typer.Argument(metavar="folder", help=_WHICH)] = None

    @property
    def _given(self) -> list[Path]:
        return [*super()._given, *([self.argument] if self.argument else [])]


@dataclass(frozen=True)
class Narrowed:
    """Which documents a question is about: a group of options."""

    in_: Annotated[
        list[str] | None, typer.Option("--in", metavar="NAME", help="Only this folder, of several; may be repeated.")
    ] = None
    path: Annotated[str, typer.Option(help="Only files with this in their path, e.g. people/.")] = ""
    tag: Annotated[str, typer.Option(help="Only files with this tag, or one below it.")] = ""
    since: Annotated[str, typer.Option(help="Only dated files, from this day: 2026-04-09, or 'last week'.")] = ""
    until: Annotated[str, typer.Option(help="Only dated files, up to this day.")] = ""
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Only files whose front matter says so: status=open, rating>=4, topics=ml; may be repeated.",
        ),
    ] = None

    def filters(self) -> MetadataFilters | None:
        """Return the filters.

        Raises:
            SettingError: One cannot work.
        """
        from llama_index_contextual.memory import note_filters

        return note_filters(
            path=self.path,
            tag=self.tag,
            since=self.since,
            until=self.until,
            collections=self.in_ or (),
            where=self.where or (),
        )


def is_owned_by_another_user(owner: int) -> bool:
    """Whether a file belongs to another user; for root, who called ``sudo`` is no other user.

    Windows has no such numbers: there nobody counts as another.
    """
    if not hasattr(os, "geteuid"):
        return False
    users = {os.geteuid()}
    if users == {0} and (caller := os.environ.get("SUDO_UID", "")).isdecimal():
        users.add(int(caller))
    return owner not in users


def option_of(key: str) -> Any:
    """Return the type of a command's argument: the option of a setting, as the setting is declared."""
    setting = SETTINGS[key]
    kind = type(setting.example if setting.default is None else setting.default)
    default = setting.computed or json.dumps(setting.default, ensure_ascii=False)
    index = "the index's own, else " if (setting.table or key) in _SHAPING else ""
    mode = "For --context llm. " if key.startswith("context_options.") else ""
    text = f"{mode}{setting.meaning} Default: {index}{default}".replace("`", "")
    return Annotated[
        (list[str] if kind in (tuple, list) else kind) | None, typer.Option(*setting.flags.split(), help=text)
    ]


def with_options(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options: those of its groups, and those of some settings, which go to its :class:`Target`.

    A group is an argument whose type is a dataclass of options. So commands that are about the same have the same.
    """
    names = {SETTINGS[key].option.strip("-").replace("-", "_"): key for key in keys}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options: dict[str, Parameter] = {}
        groups: dict[str, tuple[Any, list[str]]] = {}
        for one in signature(command, eval_str=True).parameters.values():
            group = one.annotation
            if not (isinstance(group, type) and is_dataclass(group)):
                options[one.name] = one.replace(kind=Parameter.KEYWORD_ONLY)
                continue
            types = get_type_hints(group, include_extras=True)
            defaults = {each.name: each.default for each in fields(group) if each.default is not MISSING}
            groups[one.name] = group, list(defaults)
            if issubclass(group, Target):
                types |= {name: option_of(key) for name, key in names.items()}
                defaults |= dict.fromkeys(names)
            for name, default in defaults.items():
                options[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=types[name])

        @wraps(command)
        def run(**arguments: Any) -> None:
            settings = {key: arguments.pop(name) for name, key in names.items()}
            for name, (group, members) in groups.items():
                more = {"settings": settings} if issubclass(group, Target) else {}
                arguments[name] = group(**{member: arguments.pop(member) for member in members}, **more)
            command(**arguments)

        vars(run)["__signature__"] = Signature([*options.values()])  # typer reads it
        return run

    return decorate


def question_of(words: Sequence[str]) -> str:
    """Return a question that was given as one argument or as several.

    Raises:
        SettingError: It is empty.
    """
    text = " ".join(words)
    if not text.strip():
        raise SettingError("the question is empty. Cure: say what you want to find.")
    return text


def _escape(error: UnicodeError) -> tuple[str, int]:
    r"""Return ``\uXXXX`` for a character that the output's encoding lacks. It is valid inside JSON, too."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


escape_unencodable: Final = "llama-index-contextual.escape"
codecs.register_error(escape_unencodable, _escape)
_CONTROL: Final = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # beyond those that JSON escapes by itself


def print_json(data: Any) -> None:
    """Print plain data as JSON. With ``--json`` nothing else goes to standard output."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    typer.echo(_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def print_result(data: Any, text: str, *, as_json: bool) -> None:
    """Print a result as JSON or as lines."""
    if as_json:
        print_json(data)
    else:
        print_text(text)


def print_report(report: Any, text: str = "", *, as_json: bool) -> None:
    """Print a report as JSON, or as lines: its own, if it has no other text."""
    data = report.to_dict() if hasattr(report, "to_dict") else asdict(report)
    print_result(data, text or str(report), as_json=as_json)


def print_text(text: str) -> None:
    """Print lines. Control characters of names and texts are shown, and do nothing."""
    typer.echo(printable(text))


def tell(text: str, label: str = "", style: str = "yellow") -> None:
    """Write a message to standard error, where nothing in it is read as a style or a command of the terminal."""
    messages.print(Text.assemble((label, style), " " if label and text else "", printable(text)))


def tell_freshness(freshness: Freshness) -> None:
    """Say on standard error how far the index is behind its folder, where it is."""
    if note := str(freshness):
        tell(note, "note:")


def tell_skipped(index: ContextualIndex, *, names: bool) -> None:
    """Say on standard error how many files of a folder are not read: by their kinds, or as a vault's templates."""
    from llama_index_contextual.app.folder.walk import summary_of_skipped

    paths, not_notes = index.unread()
    for path in sorted([*paths, *not_notes]) if names else ():
        tell(path, "not read:")
    vault = f"{counted(len(not_notes), 'template')} or drawings of an Obsidian vault not read"
    for said in (summary_of_skipped(paths), vault if not_notes else ""):
        if said:
            tell(said + ("" if names else "; --list-skipped names them"), "note:")


def tell_error(error: Exception) -> None:
    """Write an error as one message. It names settings as the command line does."""
    text = error.shown(as_option) if isinstance(error, SettingError) else str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}. Cure: name a place that exists and that you may use."
    tell(text, "error:", "red")


def tell_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show our own warnings as one line. A user cannot mend those of libraries, so they are not shown."""
    if issubclass(category, ContextualWarning):
        tell(str(message), "warning:")


class _Once(logging.Handler):
    """Tell the warnings that parts of this package log, each once: a damaged file is met by several of them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._told:
            self._told.add(text)
            tell(text, "warning:")


def tell_log() -> None:
    """Tell what this package logs in the same way as its warnings."""
    logger = logging.getLogger("llama_index_contextual")
    logger.handlers[:] = [_Once()]
    logger.propagate = False


# The option, or else the key of the configuration, by the name of a setting in Python.
_OPTIONS: Final = {
    **{name: f"--{name}" for name in ("storage", "reindex", "since", "until", "port")},
    **{setting.name: setting.key for setting in SETTINGS.values()},
    **{setting.name: setting.option for setting in SETTINGS.values() if setting.option},
}


def as_option(name: str, value: str) -> str:
    """Return a setting as the command line names it, with its value as a shell would have it."""
    bare = value[1:-1] if value[:1] == "'" and not any(map(str.isspace, value)) else value
    return f"{_OPTIONS.get(name, name)}={bare}"


def write_page(file: Path, text: str) -> None:
    """Write a page to a file and say so.

    Raises:
        SettingError: The file cannot be written.
    """
    try:
        file.write_text(text, "utf-8", errors="replace")
    except OSError as error:
        raise SettingError(
            f"{file} cannot be written ({error.strerror}). Cure: name a file in a folder that exists."
        ) from error
    tell(f"Written: {file}")
