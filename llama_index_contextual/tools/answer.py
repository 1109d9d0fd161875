"""Answers of the tools: a text for the model, and data for the program around it."""

from __future__ import annotations

from collections.abc import Mapping
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
