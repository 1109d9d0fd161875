"""What the commands share: options, an open index, and the one place that prints."""

from __future__ import annotations

import codecs
import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from llama_index_contextual.config import SETTINGS, load_configuration
from llama_index_contextual.config.trust import is_strange, user_storage
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_index_contextual.index import ContextualIndex, Freshness

EXIT_INCOMPLETE: Final = 3
EXIT_INTERRUPTED: Final = 130  # what a shell reports for a program that SIGINT ended

messages = Console(stderr=True, soft_wrap=True, highlight=False)

Storage = Annotated[Path | None, typer.Option(help="Where the index lives. Default: FOLDER/.contextual")]
Config = Annotated[Path | None, typer.Option(help="A configuration file. Default: FOLDER/contextual.toml")]
Folder = Annotated[
    list[Path] | None,
    typer.Option(
        "--folder", "-f", metavar="PATH", help="The folder that was indexed. Default: that of --storage, else this one"
    ),
]
Indexed = Annotated[
    Path | None, typer.Argument(help="The folder that was indexed. Default: that of --storage, else this one")
]
Documents = Annotated[Path, typer.Argument(help="A folder of Markdown and text files.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
In = Annotated[
    list[str] | None, typer.Option("--in", metavar="NAME", help="Only this folder, of several; may be repeated.")
]
PathPart = Annotated[str, typer.Option("--path", help="Only files with this in their path, e.g. people/.")]
TagPart = Annotated[str, typer.Option("--tag", help="Only files with this tag, or one below it.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="Only files whose front matter says so: status=open, rating>=4, topics=ml; may be repeated.",
    ),
]
Since = Annotated[str, typer.Option("--since", help="Only dated files, from this day: 2026-04-09, or 'last week'.")]
Until = Annotated[str, typer.Option("--until", help="Only dated files, up to this day.")]
Question = Annotated[list[str], typer.Argument(help="What you want to find; no quotes are needed.")]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page to look at to this file.")]
RERANKERS: Final = "cohere:MODEL, jina:MODEL, llama.cpp:URL, fastembed:MODEL, sentence-transformers:MODEL or llm"
All = Annotated[bool, typer.Option("--all", help="Show every setting.")]
ListSkipped = Annotated[bool, typer.Option("--list-skipped", help="Name the files that are not read.")]


Options = dict[str, Any]  # what options say of settings, by key; None is not said


def option_of(key: str) -> Any:
    """Return the type of a command's argument: the option of a setting, as the setting is declared."""
    setting = SETTINGS[key]
    kind = type(setting.example if setting.info.default is None else setting.info.default)
    default = setting.computed or json.dumps(setting.default, ensure_ascii=False)
    index = "the index's own, else " if setting.path[0] in ("files", "chunks", "context", "embedding") else ""
    mode = "For --context llm. " if key.startswith("context.llm.") else ""
    text = f"{mode}{setting.info.description} Default: {index}{default}".replace("`", "")
    return Annotated[(list[str] if kind is tuple else kind) | None, typer.Option(*setting.flags.split(), help=text)]


EmbedModel = option_of("embedding.model")


def with_options(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of some settings. What they say is its argument ``settings``, a :data:`Options`."""
    names = {SETTINGS[key].option.strip("-").replace("-", "_"): key for key in keys}
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=option_of(names[name])) for name in names
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**arguments: Any) -> None:
            command(settings={key: arguments.pop(name) for name, key in names.items()}, **arguments)

        parameters = [*signature(command, eval_str=True).parameters.values()]
        place = next(number for number, one in enumerate(parameters) if one.name == "settings")
        parameters[place : place + 1] = options
        vars(run)["__signature__"] = Signature(parameters)  # typer reads it
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


def indexed_folder(folders: Path | Sequence[Path] | None, storage: Path | None) -> Path | None:
    """Return the folder whose index is asked; None for that of the storage, or of the user's own ``[collections]``.

    Where none is named it is the next folder above with an index of this user's. An index of another user is passed
    over: who made it could have it answer from anywhere below.

    Raises:
        SettingError: Several are named.
    """
    from llama_index_contextual.index.state import DEFAULT_NAME, Layout

    named = [folders] if isinstance(folders, Path) else list(folders or ())
    if len(named) > 1:
        raise SettingError(
            "--folder is given more than once. Cure: one index of them all, index "
            f"{' '.join(map(str, named))} --storage PLACE, and then --storage PLACE instead of --folder."
        )
    if named or storage is not None:
        return named[0] if named else None
    start = Path.cwd()
    for folder in (start, *start.parents):
        with suppress(OSError):
            owners = {path.stat().st_uid for path in (folder, Layout(folder / DEFAULT_NAME).database)}
            if not any(map(is_strange, owners)):
                if folder != start:
                    tell(f"the index of {folder}")
                return folder
    return None if load_configuration(user_storage()).collections else start


@contextmanager
def open_index(
    folder: Path | Sequence[Path] | Mapping[str, str] | None,
    storage: Path | None,
    config: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[ContextualIndex]:
    """Open an index for the time of a command.

    Args:
        folder: The documents, as :func:`indexed_folder` takes them; or several by name.
        storage: Where the index lives, or None.
        config: A configuration file, or None for the folder's own.
        settings: What options of the command line say, by key of the configuration. None is not said.
        **options: More of ``ContextualIndex.open``.
    """
    from llama_index_contextual.index import ContextualIndex  # slow: it imports chromadb

    if not isinstance(folder, Mapping):
        folder = indexed_folder(folder, storage)
    read_configuration = partial(load_configuration, file=config, options=settings)
    with ContextualIndex.open(folder, storage=storage, config=read_configuration, **options) as index:
        yield index


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


def print_report(report: Any, *, as_json: bool) -> None:
    """Print a report as JSON or as lines."""
    if as_json:
        print_json(report.to_dict())
    else:
        print_text(str(report))


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
    from llama_index_contextual.documents.files import said_of_skipped

    paths, not_notes = index.unread()
    for path in sorted([*paths, *not_notes]) if names else ():
        tell(path, "not read:")
    vault = f"{counted(len(not_notes), 'template')} or drawings of an Obsidian vault not read"
    for said in (said_of_skipped(paths), vault if not_notes else ""):
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
