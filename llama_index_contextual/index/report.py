"""What a refresh did, as an object that prints itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_index_contextual.storage.files import Problem
    from llama_index_contextual.storage.fingerprint import Difference


@dataclass(slots=True)
class RefreshReport:
    """What a refresh did. Documents are named by id: their path relative to the folder, or the id that was given.

    Attributes:
        added: Documents that are new.
        changed: Documents whose content differs.
        outdated: Documents whose content is the same, made again because settings changed.
        moved: Documents found under another path with the same content: ``(old, new)``.
        deleted: Documents that are gone.
        unchanged: Documents that needed nothing.
        failed: Files and documents that could not be indexed, and why. What the index held of them stays.
        repaired: Files that could be read only with a repair, and which.
        differences: Settings that differ from those the index was made with.
        chunks: How many nodes the index holds now.
        embedded: Texts sent to the embedding model.
        embedded_for_moves: Those of them that only a new path made necessary, because the context shows it.
        reused: Chunks whose vector was known from an earlier run, under the same or another id.
        relocated: Chunks whose text and context stayed and whose lines or other metadata changed: not embedded.
        removed: Chunks that went.
        context_sources: How many chunks of the index have a context from each source.
        seconds: How long it took.
    """

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    repaired: list[Problem] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    chunks: int = 0
    embedded: int = 0
    embedded_for_moves: int = 0
    reused: int = 0
    relocated: int = 0
    removed: int = 0
    context_sources: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def skipped(self) -> int:
        """How many documents needed nothing."""
        return len(self.unchanged)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "added": self.added,
            "changed": self.changed,
            "outdated": self.outdated,
            "moved": [{"from": old, "to": new} for old, new in self.moved],
            "deleted": self.deleted,
            "unchanged": self.skipped,
            "failed": [{"path": problem.path, "reason": problem.reason} for problem in self.failed],
            "repaired": [{"path": problem.path, "reason": problem.reason} for problem in self.repaired],
            "differences": [str(difference) for difference in self.differences],
            "chunks": self.chunks,
            "embedded": self.embedded,
            "embedded_for_moves": self.embedded_for_moves,
            "reused": self.reused,
            "relocated": self.relocated,
            "removed": self.removed,
            "context_sources": self.context_sources,
            "seconds": round(self.seconds, 3),
        }

    @property
    def _moved(self) -> str:
        why = f" (their path is part of what is embedded: {self.embedded_for_moves} chunks embedded for that)"
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
        said = ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "no documents"
        work = f"{self.chunks} chunks, {self.embedded} embedded, {self.reused} reused, {self.relocated} relocated"
        return f"{said}; {work}; {self.seconds:.1f} s"
