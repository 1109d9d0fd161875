"""The plan of a refresh, a pure function of what is indexed and what is there now: the report of a refresh to come."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_index_contextual.app.store.rows import DocumentRow


@dataclass(slots=True)
class RefreshReport:
    """What a refresh does, or did. Documents are named by id: their path relative to the folder, or their own id.

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

    @property
    def to_index(self) -> list[str]:
        """Ids of the documents to parse, in order."""
        return sorted([*self.added, *self.changed, *self.outdated, *(new for _, new in self.moved)])

    @property
    def to_delete(self) -> list[str]:
        """Ids of the documents that leave the index, in order."""
        return sorted([*self.deleted, *(old for old, _ in self.moved)])

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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        moved = [{"from": old, "to": new} for old, new in self.moved]
        return {**asdict(self), "moved": moved, "chunks": self.chunks}

    @property
    def work(self) -> str:
        """How many documents were made, moved, deleted or refused; "" for none."""
        words = {"outdated": "made again", "failed": "not indexed"}
        names = ("added", "changed", "outdated", "moved", "deleted", "failed")
        counts = [(len(getattr(self, name)), words.get(name, name)) for name in names]
        return ", ".join(f"{number} {word}" for number, word in counts if number)

    def __str__(self) -> str:
        size = f"{counted(len(self.to_index) + self.skipped, 'document')}, {counted(self.chunks, 'chunk')}"
        return f"{size}: {self.work or 'nothing has changed'}; {self.embedded:,} embedded"


def make_plan(
    old: Mapping[str, DocumentRow],
    now: Mapping[str, str],
    made_with: Callable[[str], str],
    covered: str | None,
    failed: Iterable[Problem] = (),
) -> RefreshReport:
    """The report of what there is to do.

    Args:
        old: What is indexed.
        now: What is there: the hash of the content by id.
        made_with: The hash of the settings of today for an id.
        covered: Folder (POSIX, relative, "" for everything) outside of which nothing is deleted; None deletes nothing.
        failed: Files, or folders ending in ``/``, of which nothing is known today; what the index holds of them stays.
    """
    plan = RefreshReport(failed=list(failed))
    for key, sha256 in sorted(now.items()):
        entry = old.get(key)
        if entry is None:
            plan.added.append(key)
        elif not sha256 or entry.sha256 != sha256:  # "": it could not be read now
            plan.changed.append(key)
        elif entry.made_with != made_with(key):
            plan.outdated.append(key)
        else:
            plan.skipped += 1
    folder, spared = (covered or "").rstrip("/"), tuple(problem.path for problem in plan.failed)
    missing = [
        key
        for key, entry in old.items()
        if key not in now and entry.kind == "file" and covered is not None and not is_spared(key, spared)
    ]
    plan.deleted = sorted(key for key in missing if not folder or key == folder or key.startswith(f"{folder}/"))
    by_hash: dict[str, list[str]] = {}
    for key in reversed(plan.deleted):
        by_hash.setdefault(old[key].sha256, []).append(key)
    plan.moved = [(same.pop(), key) for key in plan.added if now[key] and (same := by_hash.get(now[key]))]
    renamed = {key for pair in plan.moved for key in pair}
    plan.added = [key for key in plan.added if key not in renamed]
    plan.deleted = [key for key in plan.deleted if key not in renamed]
    return plan


def is_spared(path: str, failed: tuple[str, ...]) -> bool:
    """Whether nothing is known of a path today; see ``failed`` of :func:`make_plan`."""
    return any(item in (path, "./") or (item.endswith("/") and path.startswith(item)) for item in failed)
