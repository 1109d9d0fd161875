"""Options that commands share: which index, what narrows a question, and the options of settings."""

from __future__ import annotations

import _thread
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_origin, get_type_hints

import typer

from llama_index_contextual.app.settings.loading import load_configuration, user_storage
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.app.settings.schema import Configuration

EXIT_INCOMPLETE: Final = 3
_AGAIN: Final = 20.0  # seconds after which a Ctrl-C counts again, where its work has not ended
EXIT_INTERRUPTED: Final = 130  # what a shell reports for a program that SIGINT ended
COMMANDS: Final[list[Callable[..., None]]] = []

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page to look at to this file.")]
ListSkipped = Annotated[
    bool, typer.Option("--list-skipped", help="Name the files that are not read, and what is left out of others.")
]
_REMEMBERED: Final = ("files", "chunks", "context", "embed_model")
_WHICH: Final = "The folder that was indexed. Default: that of --storage, else this one"


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises ``KeyboardInterrupt`` within, for work that has to end in order; elsewhere it ends the process."""
    before, timers = signal.getsignal(signal.SIGINT), list[threading.Timer]()

    def interrupt(*_: object) -> None:
        again = threading.Timer(_AGAIN, _thread.interrupt_main)  # Python drops what is raised in a destructor
        again.daemon = True
        again.start()
        timers.append(again)
        raise KeyboardInterrupt

    if before is not signal.SIG_IGN:  # a command that a shell runs in the background
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class Target:
    """The index that a command is about: a group of options (see :func:`with_options`)."""

    folders: Annotated[list[Path] | None, typer.Option("--folder", "-f", metavar="PATH", help=_WHICH)] = None
    storage: Annotated[Path | None, typer.Option(help="Where the index is. Default: FOLDER/.contextual")] = None
    settings: dict[str, Any] = field(default_factory=dict)
    """The options of settings, by key; None is not set."""

    @property
    def named(self) -> Path | None:
        """The folder that was named; None where none was.

        Raises:
            SettingError: Several are named.
        """
        named = [*(self.folders or ()), *filter(None, [getattr(self, "argument", None)])]
        if len(named) > 1:
            cure = f"one index of them all, index {' '.join(map(str, named))} --storage PLACE, and --storage PLACE here"
            raise SettingError(f"the folder is named more than once. Cure: {cure}")
        return named[0] if named else None

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
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only by front matter: rating>=4; several times."),
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
    text = f"{setting.meaning} Default: {index}{default}".replace("`", "")
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
        options: dict[str, Parameter] = {}
        groups: dict[str, tuple[Any, list[str]]] = {}

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
