"""Reports on an index: its contents, how far it is behind its folder, and its consistency."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

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

_SAMPLE_SIZE = 200  # chunks whose languages represent all chunks
_NAMED = 0.01  # languages with a smaller share are not named
PATIENCE = 0.08  # seconds that an answer may wait for a refresh


@dataclass(slots=True)
class RefreshReport:
    """The plan or the result of a refresh.

    Documents are listed by their path relative to the folder, or by their own id.

    Attributes:
        added: New documents.
        changed: Documents whose content changed.
        outdated: Documents that were indexed again only because settings changed.
        deleted: Documents that were deleted.
        skipped: The number of documents that were up to date.
        failed: Files and documents that could not be indexed, with reasons. Their earlier chunks
            stay in the index.
        repaired: Files that could be read only after a repair, with the repair.
        embedded: The number of texts sent to the embedding model.
        documents: The number of documents that the index contains now.
        context_sources: The number of chunks by the source of their context.
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
        """Return the number of chunks that the index contains now."""
        return sum(self.context_sources.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {**asdict(self), "chunks": self.chunks}

    @property
    def work(self) -> str:
        """Return in words how many documents are indexed, deleted or refused; "" for none."""
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
    """Return a report on the work that a refresh has to do.

    Args:
        old: The indexed documents.
        now: The hashes of the current contents by id.
        made_with: The hash of the current settings.
        failed: Files that cannot be read now, or folders ending in ``/``. Their chunks stay in the
            index.
        deletes: Whether to delete files that do not exist any more.
    """
    plan = RefreshReport(failed=list(failed))
    for key, sha256 in sorted(now.items()):
        entry = old.get(key)
        if entry is None:
            plan.added.append(key)
        elif not sha256 or entry.sha256 != sha256:  # without a hash, it could not be read now
            plan.changed.append(key)
        elif entry.made_with != made_with:
            plan.outdated.append(key)
        else:
            plan.skipped += 1
    if deletes:
        unread = [problem.path for problem in plan.failed]
        missing = [key for key, entry in old.items() if key not in now and entry.kind == "file"]
        plan.deleted = sorted(key for key in missing if not _is_unread(key, unread))
    return plan


def _is_unread(key: str, unread: Sequence[str]) -> bool:
    """Return whether a document, or a folder that contains it, could not be read."""
    if "./" in unread or key in unread:
        return True
    return any(path.endswith("/") and key.startswith(path) for path in unread)


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """The contents and the condition of an index.

    Attributes:
        folders: The ``path`` and the number of ``documents`` of each folder by name. The name of a
            single folder is "".
        storage: The folder of the index.
        languages: The share of each language in a sample of the chunks, by language code.
        contexts: The number of chunks by the source of their context, "" for chunks without one.
        bytes_on_disk: The size of each part of the storage folder.
        settings: The settings that the index was made with, by ``section.key``.
        differences: Lines on settings that differ now.
        pending: The work of a refresh of the whole folder, and the files that cannot be indexed.
        problems: Inconsistencies of files, databases and caches, one sentence each; None if they
            were not checked.
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
        """Return the number of documents."""
        return sum(folder["documents"] for folder in self.folders.values())

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return sum(self.contexts.values())

    @property
    def ok(self) -> bool:
        """Return whether there are no known problems."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {**asdict(self), "documents": self.documents, "chunks": self.chunks}

    def to_text(self, *, settings: bool = True) -> str:
        """Return the report as text, with all settings or only those that differ now."""
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
        changed: The number of files that were added, changed or deleted, among those that were
            compared.
        certain: Whether there was time to compare all files.
        refreshing: Whether a refresh is running.
        error: Why the index cannot be brought up to date, or why the last refresh in the background
            failed; or "".
    """

    changed: int = 0
    certain: bool = True
    refreshing: bool = False
    error: str = ""

    def __bool__(self) -> bool:
        """Return whether the index is behind its folder, or may be."""
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
    """Return how far an index is behind its folder, after at most ``budget`` seconds."""
    if settings.folders.missing_folders_message:
        return Freshness(
            certain=False, error=f"{settings.folders.missing_folders_message}. Put it back."
        )
    # Load settings before the clock starts. In a new process, that takes longer than the budget.
    _ = settings.folder_reader, settings.fingerprint_for(settings.database.state())
    until = time.monotonic() + budget
    plan, sources = plan_refresh(settings, rows, until)
    is_certain = time.monotonic() <= until
    # Ignore sources that there was no time to read.
    compared = {source.id for source in sources if is_certain or source.sha256}
    changed = len(compared.intersection(plan.changed))
    return Freshness(len(plan.added) + changed + len(plan.deleted), certain=is_certain)


def plan_refresh(
    settings: IndexSettings, rows: Mapping[str, DocumentRow], until: float = math.inf
) -> tuple[RefreshReport, list[Source]]:
    """Return the plan of a refresh, with the files that cannot be indexed, and the sources.

    Files are compared by size and times. Only those that differ are read.

    Args:
        settings: The settings of the index.
        rows: The rows of all documents, including failed ones.
        until: The time to stop at, by ``time.monotonic``.
    """
    discovery = settings.folder_reader.find(until=until, known=rows)
    sources = file_sources(discovery.files, settings.folder_reader, rows, until)
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
    made_with = nodes_hash(settings.fingerprint_for(settings.database.state()))
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
    """Return the contents of an index and the work that a refresh would have.

    Args:
        settings: The settings of the index.
        check: Whether to read and compare everything.

    Raises:
        StorageError: The index does not exist or is damaged.
    """
    with settings.database.reading() as snapshot:
        state = snapshot.state
        rows = snapshot.documents()
        plan, _ = plan_refresh(settings, rows)
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
    """Read everything, and return one sentence for each inconsistency."""
    settings.database.check()
    problems = []
    remembered = settings.layout.remembered_settings()
    is_same = remembered.get("identity") == snapshot.state.identity
    if is_same and remembered.get("change", 0) > snapshot.state.change:
        problems.append(
            f"{settings.layout.database.name} is older than the last refresh. A copy was put back. "
            f"{settings.layout.fix}"
        )
    changes = {"added": plan.added, "changed": plan.changed, "deleted": plan.deleted}
    lines = []
    for kind, keys in changes.items():
        lines += [f"{key}: {kind} since the index was made." for key in keys]
    return problems + sorted(lines)
