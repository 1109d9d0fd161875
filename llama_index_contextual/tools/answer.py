"""Answers of the tools: text for the model, and data for the program that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_CHARS = 2500  # length of an answer, unless the call asks for more


@dataclass(frozen=True)
class Answer:
    """The answer of a tool. ``str()`` returns its text.

    Attributes:
        text: The text for the model.
        data: Details for programs that the text does not contain, such as scores.
    """

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def fitting(texts: Iterable[str], max_chars: int, gap: int = 1) -> list[str]:
    """Return the first texts, as many as fit.

    Args:
        texts: The texts. An iterator is only read until a text does not fit.
        max_chars: The largest total length in characters.
        gap: The number of characters that separate two texts.
    """
    shown = list[str]()
    available = max_chars + gap
    for text in texts:
        available -= len(text) + gap
        if available < 0:
            break
        shown.append(text)
    return shown
