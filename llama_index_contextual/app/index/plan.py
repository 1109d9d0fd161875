"""What a refresh has to do, a pure function of what is indexed and what is there now; what it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_index_contextual.app.store.schema import DocumentRow


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with each document, by id; every list is sorted.

    Attributes:
        added: Not in the index.
        changed: Its content differs.
        outdated: Its content is the same, the settings that made its nodes are not.
        renamed: New id to old id, for added documents whose content a deleted one had.
        deleted: In the index, no longer there.
        unchanged: Nothing to do.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    deleted: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()

    @property
    def to_index(self) -> tuple[str, ...]:
        """Ids of the documents to parse."""
        return tuple(sorted((*self.added, *self.changed, *self.outdated)))


def make_plan(
    old: Mapping[str, DocumentRow],
    now: Mapping[str, str],
    *,
    made_with: Callable[[str], str] | None,
    covered: str | None,
    blocked: Iterable[str] = (),
) -> Plan:
    """Compare.

    Args:
        old: What is indexed.
        now: What is there: the hash of the content by id.
        made_with: Gives the hash of the settings of today for an id; None leaves what other settings made.
        covered: Folder (POSIX, relative, "" for everything) outside of which nothing is deleted; None deletes nothing.
        blocked: Paths of which nothing is known today, files or folders ending in ``/``; what the index holds of
            them stays.
    """
    added, changed, outdated, unchanged = [], [], [], []
    for key, sha256 in now.items():
        entry = old.get(key)
        if entry is None:
            added.append(key)
        elif not sha256 or entry.sha256 != sha256:  # "": it could not be read now
            changed.append(key)
        elif made_with is not None and entry.made_with != made_with(key):
            outdated.append(key)
        else:
            unchanged.append(key)
    spared = tuple(blocked)
    missing = [
        key
        for key, entry in old.items()
        if key not in now and entry.kind == "file" and _covers(covered, key) and not is_spared(key, spared)
    ]
    return Plan(
        added=tuple(sorted(added)),
        changed=tuple(sorted(changed)),
        outdated=tuple(sorted(outdated)),
        renamed=_renames(added, missing, now, old),
        deleted=tuple(sorted(missing)),
        unchanged=tuple(sorted(unchanged)),
    )


def _covers(covered: str | None, path: str) -> bool:
    if covered is None:
        return False
    folder = covered.rstrip("/")
    return not folder or path == folder or path.startswith(f"{folder}/")


def is_spared(path: str, blocked: tuple[str, ...]) -> bool:
    """Return whether nothing is known of a path today; see ``blocked`` of :func:`make_plan`."""
    return any(item in (path, "./") or (item.endswith("/") and path.startswith(item)) for item in blocked)


def _renames(
    added: list[str], missing: list[str], now: Mapping[str, str], old: Mapping[str, DocumentRow]
) -> tuple[tuple[str, str], ...]:
    """Pair added documents with deleted ones of equal content, each used once."""
    by_hash: dict[str, list[str]] = {}
    for key in sorted(missing, reverse=True):
        if old[key].sha256:
            by_hash.setdefault(old[key].sha256, []).append(key)
    return tuple((key, same.pop()) for key in sorted(added) if (same := by_hash.get(now[key])))


@dataclass(slots=True)
class ChunkWork:
    """What a refresh did with chunks, and how long it took.

    Attributes:
        chunks: How many the index holds now.
        embedded: Texts sent to the embedding model.
        embedded_for_moves: Those of them that only a new path made necessary, because the context shows it.
        reused: Chunks whose vector was known from an earlier run, under the same or another id.
        relocated: Chunks whose text and context stayed and whose lines or other metadata changed: not embedded.
        removed: Chunks that left the index.
        context_sources: How many chunks of the index have a context from each source.
        seconds: How long the refresh took.
    """

    chunks: int = 0
    embedded: int = 0
    embedded_for_moves: int = 0
    reused: int = 0
    relocated: int = 0
    removed: int = 0
    context_sources: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True)
class RefreshReport:
    """What a refresh did. Documents are named by id: their path relative to the folder, or the id of the document.

    The fields of :class:`ChunkWork` are read here, too: ``report.embedded``.

    Attributes:
        added: Documents that are new.
        changed: Documents whose content differs.
        outdated: Documents whose content is the same, made again because settings changed.
        moved: Documents found under another path with the same content: ``(old, new)``.
        deleted: Documents that are no longer there.
        unchanged: Documents that needed nothing.
        failed: Files and documents that could not be indexed, and why. What the index held of them stays.
        repaired: Files that could be read only with a repair, and which.
        differences: Settings that differ from those the index was made with.
        work: What it did with chunks.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    repaired: list[Problem] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    work: ChunkWork = field(default_factory=ChunkWork)

    def __getattr__(self, name: str) -> Any:
        if name in ChunkWork.__dataclass_fields__:
            return getattr(self.work, name)
        raise AttributeError(name)

    def fail(self, key: str, reason: str) -> None:
        """Note that a document cannot be indexed, and why."""
        self.failed.append(Problem(key, reason))
        for names in (self.added, self.changed, self.outdated):
            if key in names:
                names.remove(key)

    @property
    def skipped(self) -> int:
        """How many documents needed nothing."""
        return len(self.unchanged)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        fields = asdict(self)
        return {
            **fields,
            **fields.pop("work"),
            "moved": [{"from": old, "to": new} for old, new in self.moved],
            "unchanged": self.skipped,
            "seconds": round(self.work.seconds, 3),
        }

    @property
    def _moved(self) -> str:
        chunks = counted(self.embedded_for_moves, "chunk")
        why = f" (their path is part of what is embedded: {chunks} embedded for that)"
        return f"moved{why if self.embedded_for_moves else ''}"

    def __str__(self) -> str:
        counts = {
            "added": len(self.added),
            "changed": len(self.changed),
            "made again": len(self.outdated),
            self._moved: len(self.moved),
            "deleted": len(self.deleted),
            "unchanged": self.skipped,
            "failed": len(self.failed),
        }
        documents = ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "no documents"
        chunks = counted(self.chunks, "chunk")
        work = f"{chunks}, {self.embedded} embedded, {self.reused} reused, {self.relocated} relocated"
        return f"{documents}; {work}; {self.seconds:.1f} s"
