"""Shared parts of the commands: the index, the options of settings, and the output.

Control characters in names and texts are escaped, so they cannot control the terminal.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llama_index_contextual import __version__
from llama_index_contextual.app.settings.registry import SETTINGS, Options
from llama_index_contextual.utils.errors import StorageError
from llama_index_contextual.utils.metadata import LEFT_OUT, PATH
from llama_index_contextual.utils.text import printable

if TYPE_CHECKING:
    from llama_index_contextual.app.index.index import ContextualIndex
    from llama_index_contextual.app.index.settings import IndexSettings

Function = Callable[..., "int | None"]  # a command that returns its exit code, or None for 0

EXIT_INCOMPLETE = 3
INTERRUPTED = 130  # by Ctrl-C
_UNWRAPPED = 10**6  # columns of a line in a pipe
PLACE: Any = click.Path(path_type=Path)
_WHICH = "The indexed folder. Default: that of --storage, else the current folder."
# Control characters, text directions and invisible characters that JSON does not escape by itself.
_UNSEEN = re.compile(
    "[\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise ``KeyboardInterrupt`` in work that needs an orderly end.

    Elsewhere, Ctrl-C ends the process at once.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # not in a command that a shell runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# Commands and options


class _InOrder(click.Group):
    """A group that lists commands in the order of their use."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names of the commands, ``index`` first."""
        return sorted(self.commands, key=lambda name: name != "index")


@click.group(cls=_InOrder, name="llama-index-contextual")
@click.version_option(__version__, message="llama-index-contextual %(version)s")
def app() -> None:
    """Give every chunk of your Markdown its context back, and find it again. No key, no network."""


as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
html = click.option("--html", type=PLACE, help="Write an HTML page to this file.")
list_skipped = click.option(
    "--list-skipped",
    is_flag=True,
    help="List the files that are not read, and the parts that are left out of other files.",
)


@dataclass(frozen=True)
class Target:
    """The index that a command uses.

    Attributes:
        named: The folder on the command line, if any.
        storage: The storage on the command line, if any.
        settings: The settings on the command line, by key.
    """

    named: Path | None
    storage: Path | None
    settings: Mapping[str, Any]

    @property
    def folder(self) -> Path | None:
        """Return the folder of the index; None means that of the storage."""
        return self.named if self.named or self.storage is not None else Path.cwd()

    def open(self, folder: Any, **options: Any) -> ContextualIndex:
        """Open the index of a folder, with further arguments of ``ContextualIndex.open``."""
        # This imports LlamaIndex, which is slow.
        from llama_index_contextual.app.index.index import ContextualIndex

        return ContextualIndex.open(folder, storage=self.storage, config=self.settings, **options)


_STORAGE = click.option(
    "--storage", type=PLACE, help="The folder of the index. Default: one in your data directory"
)
_FOLDER = click.option("--folder", "-f", "named", type=PLACE, help=_WHICH)
_FOLDER_ARGUMENT = click.argument("argument", type=PLACE, required=False, metavar="[FOLDER]")


def command(
    *keys: str, folder: str = "--folder", more: Sequence[Callable[[Function], Function]] = ()
) -> Callable[[Function], click.Command]:
    """Return a decorator for a command, whose function gets a :class:`Target` first.

    Args:
        *keys: The settings that get an option.
        folder: How the folder is named: with an option, also with an argument (``"folder"``), or
            not at all (``""``).
        more: Further options and arguments.
    """
    key_of = {SETTINGS[key].option.strip("-").replace("-", "_"): key for key in keys}

    def decorate(function: Function) -> click.Command:
        @wraps(function)
        def run(storage: Path | None, **values: Any) -> int | None:
            places = [values.pop("named", None), values.pop("argument", None)]
            named = [place for place in places if place]
            if len(named) > 1:
                raise click.UsageError(
                    "the folder is named twice, as an argument and with --folder"
                )
            settings = {key: values.pop(name) for name, key in key_of.items()}
            given = {key: value for key, value in settings.items() if value != ()}
            target = Target(
                named[0] if named else None, storage, Options({**dict.fromkeys(settings), **given})
            )
            return function(target, **values)

        parameters: list[Callable[[Function], Function]]
        parameters = [*more, *map(_setting_option, keys), _STORAGE]
        if folder:
            parameters.append(_FOLDER)
        if folder == "folder":
            parameters.append(_FOLDER_ARGUMENT)
        for parameter in parameters:
            parameter(run)
        return app.command(function.__name__)(run)

    return decorate


def _setting_option(key: str) -> Callable[[Function], Function]:
    """Return the command line option of a setting."""
    setting = SETTINGS[key]
    kind = getattr(setting.kind, "__origin__", setting.kind)
    default = setting.computed or json.dumps(setting.default, ensure_ascii=False)
    text = f"{setting.meaning} Default: {default}".replace("`", "").replace("[]", "none")
    is_list = setting.table == "files"
    return click.option(
        *setting.flags.split(),
        type=kind if kind in (int, float) else None,
        multiple=is_list,
        default=None,
        help=text,
    )


# Output


def print_text(text: str, *, newline: bool = True) -> None:
    """Print text and flush it, because ``--watch`` does not end."""
    click.echo(printable(text), nl=newline)


def styled(text: str, **style: Any) -> str:
    """Return a text in one line with a style of ``click``, which is removed in a pipe."""
    return click.style(printable(text, one_line="\n" in text), **style)


def print_line(*parts: str, indent: int = 0) -> None:
    """Print a line of styled texts, wrapped at the width of a terminal."""
    margin = " " * indent
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNWRAPPED
    click.echo(click.wrap_text("".join(parts), width, margin, margin))


def print_report(data: Any, text: str, *, as_json: bool) -> None:
    """Print a report as text, or as JSON."""
    if as_json:
        is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        shown = json.dumps(data, indent=2, ensure_ascii=not is_unicode)
        text = _UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], shown)
    print_text(text)


def tell(text: str, label: str = "", colour: str = "yellow") -> None:
    """Write a message as one line to standard error. An empty one is not written."""
    if text:
        start = f"{click.style(label, fg=colour)} " if label else ""
        click.echo(start + printable(text, one_line=True), err=True)


def skipped_line(settings: IndexSettings, *, names: bool) -> str:
    """Return the number of files that are not read, by kind; "" if there are none.

    Args:
        settings: The settings of the index.
        names: Whether to write the name of each such file, and the parts left out of other files.
    """
    from llama_index_contextual.app.folder.walk import summary_of_skipped

    skipped = settings.find_files().skipped
    line = summary_of_skipped(skipped, offers_code=settings.configuration["context"] != "pattern")
    if not names:
        return f"{line}; --list-skipped names them" if line else ""
    for path in skipped:
        is_link = settings.folders.place(path).is_symlink()
        tell(f"{path} (a symbolic link)" if is_link else path, "not read:")
    for path, parts in _left_out_parts(settings):
        tell(f"{path}: {parts}", "left out:")
    return line


def _left_out_parts(settings: IndexSettings) -> list[tuple[str, str]]:
    """Return the parts that are left out of indexed documents, with the paths, sorted."""
    if not settings.exists:
        return []
    with settings.database.reading() as snapshot:
        rows = snapshot.rows()
        paths = snapshot.values(PATH, rows)
        parts_of_chunks = snapshot.values(LEFT_OUT, rows)
    return sorted({pair for pair in zip(paths, parts_of_chunks, strict=True) if pair[1]})


def write_page(file: Path, text: str) -> None:
    """Write a page to a file, and a message about it."""
    try:
        file.write_text(text, "utf-8", errors="replace")
    except OSError as error:
        raise StorageError(
            f"{file} cannot be written ({error.strerror}). Choose another file."
        ) from error
    tell(f"Written: {file}")
