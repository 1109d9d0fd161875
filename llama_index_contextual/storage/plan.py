"""What a refresh has to do: a pure function of what the manifest remembers and what is there now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from llama_index_contextual.storage.manifest import Entry


@dataclass(frozen=True, slots=True)
class Seen:
    """A document as it is now: its id, the hash of its content, and its size in bytes."""

    id: str
    sha256: str
    size: int = 0
    kind: str = "file"


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
    old: Mapping[str, Entry],
    now: Iterable[Seen],
    *,
    settings: str | None,
    covered: str | None,
    blocked: Iterable[str] = (),
) -> Plan:
    """Compare.

    Args:
        old: What the manifest remembers.
        now: What is there.
        settings: Hash of the settings of today; None leaves what other settings made.
        covered: Folder (POSIX, relative, "" for everything) outside of which nothing is deleted; None deletes nothing.
        blocked: Paths of which nothing is known today, files or folders ending in ``/``; what the index holds of
            them stays.
    """
    seen = {document.id: document for document in now}
    added, changed, outdated, unchanged = [], [], [], []
    for key, document in seen.items():
        entry = old.get(key)
        if entry is None:
            added.append(key)
        elif entry.sha256 != document.sha256:
            changed.append(key)
        elif settings is not None and entry.settings != settings:
            outdated.append(key)
        else:
            unchanged.append(key)
    spared = tuple(blocked)
    gone = [
        key
        for key, entry in old.items()
        if key not in seen and entry.kind == "file" and _covers(covered, key) and not _is_spared(key, spared)
    ]
    return Plan(
        added=tuple(sorted(added)),
        changed=tuple(sorted(changed)),
        outdated=tuple(sorted(outdated)),
        renamed=_renames(added, gone, seen, old),
        deleted=tuple(sorted(gone)),
        unchanged=tuple(sorted(unchanged)),
    )


def _covers(covered: str | None, path: str) -> bool:
    if covered is None:
        return False
    folder = covered.rstrip("/")
    return not folder or path == folder or path.startswith(f"{folder}/")


def _is_spared(path: str, blocked: tuple[str, ...]) -> bool:
    return any(item in (path, "./") or (item.endswith("/") and path.startswith(item)) for item in blocked)


def _renames(
    added: list[str], gone: list[str], seen: Mapping[str, Seen], old: Mapping[str, Entry]
) -> tuple[tuple[str, str], ...]:
    """Pair added documents with deleted ones of equal content, each used once."""
    by_hash: dict[str, list[str]] = {}
    for key in sorted(gone, reverse=True):
        by_hash.setdefault(old[key].sha256, []).append(key)
    return tuple((key, same.pop()) for key in sorted(added) if (same := by_hash.get(seen[key].sha256)))
