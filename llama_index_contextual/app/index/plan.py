"""The plan of a refresh, a pure function of what is indexed and what is there now, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_index_contextual.app.store.database import DocumentRow


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
    made_with: Callable[[str], str],
    covered: str | None,
    blocked: Iterable[str] = (),
) -> Plan:
    """Compare.

    Args:
        old: What is indexed.
        now: What is there: the hash of the content by id.
        made_with: The hash of the settings of today for an id.
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
        elif entry.made_with != made_with(key):
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
class RefreshReport:
    """What a refresh did. Documents are named by id: their path relative to the folder, or the id of the document.

    Attributes:
        added: Documents that are new.
        changed: Documents whose content differs.
        outdated: Documents whose content is the same, made again because settings changed.
        moved: Documents found under another path with the same content: ``(old, new)``.
        deleted: Documents that are no longer there.
        skipped: How many documents needed nothing.
        failed: Files and documents that could not be indexed, and why. What the index held of them stays.
        repaired: Files that could be read only with a repair, and which.
        embedded: How many texts were sent to the embedding model.
        context_sources: How many chunks of the index have a context from each source.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    skipped: int = 0
    failed: list[Problem] = field(default_factory=list)
    repaired: list[Problem] = field(default_factory=list)
    embedded: int = 0
    context_sources: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, failed: list[Problem]) -> RefreshReport:
        """The report of what is planned."""
        new, old = ({pair[side] for pair in plan.renamed} for side in (0, 1))
        return cls(
            added=[key for key in plan.added if key not in new],
            changed=list(plan.changed),
            outdated=list(plan.outdated),
            moved=[(before, after) for after, before in plan.renamed],
            deleted=[key for key in plan.deleted if key not in old],
            skipped=len(plan.unchanged),
            failed=failed,
        )

    def fail(self, key: str, reason: str) -> None:
        """Note that a document cannot be indexed, and why."""
        self.failed.append(Problem(key, reason))
        for names in (self.added, self.changed, self.outdated):
            if key in names:
                names.remove(key)

    @property
    def chunks(self) -> int:
        """How many chunks the index holds now."""
        return sum(self.context_sources.values())

    @property
    def any(self) -> bool:
        """Whether a document was, or has to be, made, moved or deleted."""
        return bool(self.added or self.changed or self.outdated or self.moved or self.deleted)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        moved = [{"from": old, "to": new} for old, new in self.moved]
        return {**asdict(self), "moved": moved, "chunks": self.chunks}

    @property
    def work(self) -> str:
        """How many documents were made, moved, deleted or refused; "" for none."""
        names = {"outdated": "made again", "failed": "not indexed"}
        counts = {
            name: len(getattr(self, name)) for name in ("added", "changed", "outdated", "moved", "deleted", "failed")
        }
        return ", ".join(f"{number} {names.get(name, name)}" for name, number in counts.items() if number)

    def __str__(self) -> str:
        made = sum(len(one) for one in (self.added, self.changed, self.outdated, self.moved))
        size = f"{counted(made + self.skipped, 'document')}, {counted(self.chunks, 'chunk')}"
        return f"{size}: {self.work or 'nothing has changed'}; {self.embedded:,} embedded"
