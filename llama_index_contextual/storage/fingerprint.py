"""What shaped the nodes of an index, so that a change of settings is noticed, named and acted upon."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any


def settings_hash(value: Any) -> str:
    """Short hash of settings that JSON can show."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Settings by section.

    Attributes:
        parser: Class and settings of the node parser.
        context: Name and version of the context generator; version is a hash of its prompt, model and settings.
        embedding: Identity of the model and the length of its vectors (0 where not known yet).
        reading: What turns files into documents.
    """

    parser: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    embedding: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)

    @property
    def nodes_hash(self) -> str:
        """Hash of what shapes nodes and their contexts; a document made with another is made again."""
        return settings_hash([self.parser, self.context, self.reading])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the manifest."""
        return {
            "parser": self.parser,
            "context": self.context,
            "embedding": self.embedding,
            "reading": self.reading,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that differs: ``parser.chunk_size``, what the index was made with, what is asked for."""

    setting: str
    stored: Any
    given: Any

    def __str__(self) -> str:
        return f"{self.setting}: {self.stored!r} → {self.given!r}"


def differences(stored: dict[str, Any], given: dict[str, Any]) -> list[Difference]:
    """Every setting in which two fingerprints differ, in a stable order; {} for ``stored`` differs in nothing."""
    if not stored:
        return []
    found = []
    for section in sorted(given):
        old, new = stored.get(section, {}), given[section]
        found += [
            Difference(f"{section}.{key}", old.get(key), new.get(key))
            for key in sorted({*old, *new})
            if old.get(key) != new.get(key)
        ]
    return found
