"""Answers of the tools: a text for the model, and data for the program around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MAX_CHARS: Final = 2500  # of an answer, unless the call asks for more


@dataclass(frozen=True)
class Answer:
    """What a tool answers. ``str()`` gives the text.

    Attributes:
        text: What the model reads.
        data: What the text does not say in a form that a program can read, such as scores.
    """

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def fitting(texts: Iterable[str], max_chars: int, gap: int = 1) -> list[str]:
    """Return as many of the first texts as fit.

    Args:
        texts: The texts, of which each is made only if those before it fit.
        max_chars: The length of all of them together.
        gap: The characters between two of them.
    """
    shown = list[str]()
    available = max_chars + gap
    for text in texts:
        available -= len(text) + gap
        if available < 0:
            break
        shown.append(text)
    return shown
