"""A user's message as plain words: what is quoted or pasted into it is not what it asks."""

from __future__ import annotations

import re
from typing import Final

from llama_index_contextual.memory.digest import HEADER, NOTHING

MAX_QUERY_CHARS: Final = 500  # the source's limit on the original query

_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
HAS_CJK: Final = re.compile(f"[{_CJK}]")
_WORD: Final = re.compile(f"[{_CJK}]|(?:(?![{_CJK}])[^\\W_])+(?:['-](?:(?![{_CJK}])[^\\W_])+)*")
_FENCE: Final = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_DIGEST: Final = re.compile(rf"^[> \t]*{re.escape(HEADER)}[ \t]*\n(?:[> \t]*(?:- \[.*)?(?:\n|\Z))*", re.MULTILINE)
_QUESTION: Final = re.compile(r"[?？؟]|[吗呢か][。.!！\s]*$")
_CJK_CHARS_A_WORD: Final = 2  # Chinese words have about two characters


def clean_message(message: str) -> str:
    """Leave out fenced code and an earlier digest that was pasted in or quoted; trim to 500 characters at a space."""
    text = _DIGEST.sub("\n", message.replace("\r\n", "\n"))
    text = _FENCE.sub("\n", text).replace(NOTHING, " ")
    text = re.sub(r"[ \t]+", " ", text).strip()
    text = re.sub(r"\s*\n\s*", "\n", text)
    if len(text) <= MAX_QUERY_CHARS:
        return text
    head = text[: MAX_QUERY_CHARS + 1]
    cut = max(head.rfind(" "), head.rfind("\n"))
    return text[: cut if cut > MAX_QUERY_CHARS // 2 else MAX_QUERY_CHARS].rstrip()


def words(text: str) -> list[str]:
    """Split into words; a character of a script that writes no spaces (Chinese, Japanese) is one by itself."""
    return _WORD.findall(text.replace("’", "'"))


def count_words(text: str) -> float:
    """Count words, two characters of Chinese or Japanese as one."""
    return sum(1 / _CJK_CHARS_A_WORD if HAS_CJK.match(word) else 1 for word in words(text))


def is_question(text: str) -> bool:
    """Whether a question mark, or a closing particle of Chinese or Japanese, makes it a question."""
    return bool(_QUESTION.search(text))
