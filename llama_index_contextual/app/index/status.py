"""What an index contains, how far it is behind its folder, and whether its parts agree."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.files import UnreadableError
from llama_index_contextual.app.folder.sources import Source, file_sources
from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.app.index.settings import IndexSettings, nodes_hash
from llama_index_contextual.utils.language import WORDS, detect_language
from llama_index_contextual.utils.text import counted, printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index_contextual.app.index.database import Snapshot
    from llama_index_contextual.app.index.rows import DocumentRow

_SAMPLE_SIZE: Final = 200  # chunks whose languages stand for those of all
_NAMED: Final = 0.01  # a share below it is not named
PATIENCE: Final = 0.08  # seconds that an answer may wait for a refresh


@dataclass(slots=True)
class RefreshReport:
    """What a refresh does, or did.

    Documents are named by id: their path relative to the folder, or their own id.

    Attributes:
        added: Documents that are new.
        changed: Documents whose content differs.
        outdated: Documents whose content is the same, made again because settings changed.
        deleted: Documents that are no longer there.
        skipped: How many documents needed nothing.
        failed: Files and documents that could not be indexed, and why. What the index held of them
            stays.
        repaired: Files that could be read only with a repair, and which.
        embedded: How many texts were sent to the embedding model.
        documents: How many documents the index holds now.
        context_sources: How many chunks of the index have a context from each source.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    skipped: int = 0
    failed: list[Problem] = field(default_factory=list)
    repaired: list[Problem] = field(default_factory=list)
    embedded: int = 0
    documents: int = 0
    context_sources: dict[str, int] = field(default_factory=dict)

    @property
    def to_index(self) -> list[str]:
        """Return the ids of the documents to parse, in order."""
        return sorted([*self.added, *self.changed, *self.outdated])

    def fail(self, key: str, reason: str) -> None:
        """Record that a document cannot be indexed, and why."""
        self.failed.append(Problem(key, reason))
        for names in (self.added, self.changed, self.outdated):
            if key in names:
                names.remove(key)

    @property
    def chunks(self) -> int:
        """Return how many chunks the index holds now."""
        return sum(self.context_sources.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {**asdict(self), "chunks": self.chunks}

    @property
    def work(self) -> str:
        """Return in words how many documents are made, deleted or refused; "" for none."""
        documents_by_word: dict[str, Sequence[object]] = {
            "added": self.added,
            "changed": self.changed,
            "made again": self.outdated,
            "deleted": self.deleted,
            "not indexed": self.failed,
        }
        counts = [f"{len(keys)} {word}" for word, keys in documents_by_word.items() if keys]
        return ", ".join(counts)

    def __str__(self) -> str:
        size = f"{counted(self.documents, 'document')}, {counted(self.chunks, 'chunk')}"
        return f"{size}: {self.work or 'nothing has changed'}; {self.embedded:,} embedded"


def make_plan(
    old: Mapping[str, DocumentRow],
    now: Mapping[str, str],
    made_with: str,
    failed: Iterable[Problem] = (),
    *,
    deletes: bool = True,
) -> RefreshReport:
    """Return the report of what there is to do.

    Args:
        old: What is indexed.
        now: What is there: the hash of the content by id.
        made_with: The hash of the settings of today.
        failed: Files, or folders ending in ``/``, of which nothing is known today; what the index
            holds of them stays.
        deletes: Whether files that are not there are deleted.
    """
    plan = RefreshReport(failed=list(failed))
    for key, sha256 in sorted(now.items()):
        entry = old.get(key)
        if entry is None:
            plan.added.append(key)
        elif not sha256 or entry.sha256 != sha256:  # "": it could not be read now
            plan.changed.append(key)
        elif entry.made_with != made_with:
            plan.outdated.append(key)
        else:
            plan.skipped += 1
    if deletes:
        unread = [problem.path for problem in plan.failed]
        gone = [key for key, entry in old.items() if key not in now and entry.kind == "file"]
        plan.deleted = sorted(key for key in gone if not _is_unread(key, unread))
    return plan


def _is_unread(key: str, unread: Sequence[str]) -> bool:
    """Tell whether a document, or a folder that it is in, could not be read."""
    if "./" in unread or key in unread:
        return True
    return any(path.endswith("/") and key.startswith(path) for path in unread)


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """What an index holds.

    Attributes:
        folders: The folders of documents by name, "" where there is one: ``path``, ``documents``.
        storage: Where the index lives.
        languages: The share of each language in a sample of the chunks, by its code.
        contexts: Chunks by what made their context; "" counts those without.
        bytes_on_disk: Size of each part of the storage folder.
        settings: What the index was made with, ``section.key`` to value.
        differences: Settings that are others now.
        pending: What a refresh of the whole folder would do, and the files that cannot be indexed.
        problems: What does not agree among files, databases and caches, a sentence each; None where
            that was not checked.
    """

    folders: dict[str, dict[str, Any]]
    storage: str
    languages: dict[str, float]
    contexts: dict[str, int]
    bytes_on_disk: dict[str, int]
    settings: dict[str, Any]
    differences: list[str]
    pending: RefreshReport
    problems: list[str] | None = None

    @property
    def documents(self) -> int:
        """Return how many documents there are."""
        return sum(folder["documents"] for folder in self.folders.values())

    @property
    def chunks(self) -> int:
        """Return how many chunks there are."""
        return sum(self.contexts.values())

    @property
    def ok(self) -> bool:
        """Return whether a check found nothing."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {**asdict(self), "documents": self.documents, "chunks": self.chunks}

    def to_text(self, *, settings: bool = True) -> str:
        """Return the report as lines, with all settings or only with those that differ now."""
        lines = [_folder_line(name, folder) for name, folder in self.folders.items()]
        contexts = ", ".join(
            f"{number} {source or 'none'}" for source, number in self.contexts.items()
        )
        lines += [
            f"storage     {self.storage} ({sum(self.bytes_on_disk.values()) / 1e6:.1f} MB)",
            f"documents   {self.documents} in {counted(self.chunks, 'chunk')}",
            f"languages   {languages_in_words(self.languages) or 'none'}",
            f"contexts    {contexts or 'none'}",
            f"to refresh  {self.pending.work or 'nothing'}",
            *(f"not indexed {problem}" for problem in self.pending.failed),
            f"embedding   {self.settings.get('embedding.model', 'none')}",
            *(f"setting     {key} = {value}" for key, value in self.settings.items() if settings),
            *(f"differs     {difference}" for difference in self.differences),
        ]
        if self.problems is not None:
            lines += [
                f"checked     {line}"
                for line in self.problems or ["files, databases and caches agree"]
            ]
        return printable_lines(lines)

    __str__ = to_text


def _folder_line(name: str, folder: Mapping[str, Any]) -> str:
    if not name:
        return f"folder      {folder['path']}"
    size = counted(folder["documents"], "document")
    return f"folder      {name}: {folder['path']} ({size})"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How far an index is behind its folder.

    Attributes:
        changed: Files that were added, changed or deleted since they were indexed, as far as was
            seen.
        certain: False where the time ended before all files were compared.
        refreshing: Whether they are being indexed now.
        error: Why the index cannot be brought up to date, or was not by the last refresh in the
            background; or "".
    """

    changed: int = 0
    certain: bool = True
    refreshing: bool = False
    error: str = ""

    def __bool__(self) -> bool:
        """Return whether the index is behind, or may be."""
        return bool(self.changed or self.error or self.refreshing)

    def __str__(self) -> str:
        changed = ""
        if self.changed:
            at_least = "" if self.certain else "at least "
            changed = f"{at_least}{counted(self.changed, 'file')} changed since; "
        if self.error:
            return f"{changed}the index could not be brought up to date: {self.error}"
        if self.refreshing:
            return f"{changed}being indexed"
        return f"{changed}run index" if changed else ""


def freshness_of(
    settings: IndexSettings, rows: Mapping[str, DocumentRow], budget: float
) -> Freshness:
    """Return how far an index is behind its folder, as far as is seen in so many seconds."""
    if settings.folders.missing_folders_message:
        return Freshness(
            certain=False, error=f"{settings.folders.missing_folders_message}. Put it back."
        )
    # Load what a comparison needs first: in a new process that takes longer than the budget.
    _ = settings.reading, settings.fingerprint_beside(settings.database.state())
    until = time.monotonic() + budget
    plan, sources = planned(settings, rows, until)
    is_certain = time.monotonic() <= until
    # There was no time to read the other sources.
    compared = {source.id for source in sources if is_certain or source.sha256}
    changed = len(compared.intersection(plan.changed))
    return Freshness(len(plan.added) + changed + len(plan.deleted), certain=is_certain)


def planned(
    settings: IndexSettings, rows: Mapping[str, DocumentRow], until: float = math.inf
) -> tuple[RefreshReport, list[Source]]:
    """Return what a refresh would do, with the files that cannot be indexed, and the sources.

    Files are compared by size and times, and read only where these differ.

    Args:
        settings: Of the index.
        rows: What is indexed, and which files failed.
        until: When to stop, by ``time.monotonic``; what was not seen then is not compared.
    """
    discovery = settings.reading.find(until=until, known=rows)
    sources = file_sources(discovery.files, settings.reading, rows, until)
    failed = list(discovery.problems)
    for source in sources:
        row = rows.get(source.id)
        if row is not None and row.failed and row.stamp == source.stamp:
            failed.append(Problem(source.id, row.failed))
        elif not source.sha256 and not os.access(settings.folders.place(source.id), os.R_OK):
            failed.append(Problem(source.id, str(UnreadableError("Permission denied"))))
    unread = {problem.path for problem in failed}
    documents = {key: row for key, row in rows.items() if row.is_indexed}
    now = {source.id: source.sha256 for source in sources if source.id not in unread}
    made_with = nodes_hash(settings.fingerprint_beside(settings.database.state()))
    return make_plan(
        documents, now, made_with, sorted(failed), deletes=not discovery.unfinished
    ), sources


def shares_of_languages(texts: Iterable[str]) -> dict[str, float]:
    """Return the share of each language in texts, by their letters, the largest first."""
    letters: Counter[str] = Counter()
    for text in texts:
        letters[detect_language(text)] += sum(map(str.isalpha, text))
    total = sum(letters.values())
    return {code: number / total for code, number in letters.most_common() if number}


def languages_in_words(shares: Mapping[str, float]) -> str:
    """Return languages with their shares: ``German 62%, English 38%``."""
    names = WORDS["names"] | WORDS["other names"]
    return ", ".join(
        f"{names[code].capitalize()} {share:.0%}"
        for code, share in shares.items()
        if share >= _NAMED
    )


def index_status(settings: IndexSettings, *, check: bool) -> IndexStatus:
    """Return what an index contains, and what a refresh would do.

    Args:
        settings: Of the index.
        check: Whether everything is read and compared.

    Raises:
        StorageError: There is no index, or it is damaged.
    """
    with settings.database.reading() as snapshot:
        state = snapshot.state
        rows = snapshot.documents()
        plan, _ = planned(settings, rows)
        documents = [key for key, row in rows.items() if row.is_indexed]
        by_folder = Counter(map(settings.folders.name_of, documents))
        folders = {
            name: {"path": str(folder), "documents": by_folder[name]}
            for name, folder in settings.folders.by_name.items()
        }
        chunks = snapshot.rows()
        step = max(1, math.ceil(len(chunks) / _SAMPLE_SIZE))
        sample = snapshot.node_rows(chunks[::step])
        return IndexStatus(
            folders=folders,
            storage=str(settings.layout.root),
            languages=shares_of_languages(node.text for node in sample),
            contexts=snapshot.context_sources(),
            bytes_on_disk=settings.layout.sizes(),
            settings=state.settings,
            differences=settings.differences(state),
            pending=plan,
            problems=_problems(settings, snapshot, plan) if check else None,
        )


def _problems(settings: IndexSettings, snapshot: Snapshot, plan: RefreshReport) -> list[str]:
    """Read everything, and return what does not agree, a sentence each."""
    settings.database.check()
    problems = []
    remembered = settings.layout.remembered_settings()
    is_same = remembered.get("identity") == snapshot.state.identity
    if is_same and remembered.get("change", 0) > snapshot.state.change:
        problems.append(
            f"{settings.layout.database.name} is older than the last refresh: a copy was put back. "
            f"{settings.layout.fix}"
        )
    changes = {"added": plan.added, "changed": plan.changed, "deleted": plan.deleted}
    lines = []
    for kind, keys in changes.items():
        lines += [f"{key}: {kind} since the index was made." for key in keys]
    return problems + sorted(lines)
