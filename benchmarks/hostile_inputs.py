"""Markdown meant to hurt a splitter, and a child process to try it in, which alone a hang or a crash then ends."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkers import Splitter


def pathological(megabytes: int = 1) -> dict[str, str]:
    """Twenty inputs of about so many megabytes."""
    n = megabytes * 1_000_000
    return {
        "words on one line": "word " * (n // 5),
        "sentences on one line": "This is a sentence. " * (n // 20),
        "CJK on one line": "漢字かな。" * (n // 15),
        "no space at all": "abcdefghij" * (n // 10),
        "nested quotes": "> " * min(10_000, n) + "deep",
        "nested lists": "".join("  " * min(level, 200) + "- x\n" for level in range(n // 404)),
        "headings only": "# h\n" * (n // 4),
        "backticks": "`" * (n // 5),
        "unclosed fence": "```python\n" + "x = 1\n" * (n // 6),
        "unclosed comments": "<!-- a " * (n // 7),
        "unclosed links": "[a](" * (n // 4),
        "unclosed emphasis": "*a **a " * (n // 7),
        "20k-row table": "| a | b |\n|---|---|\n" + "| cell | cell of a row with words |\n" * (n // 36),
        "2k-column table": f"|{'c|' * 2000}\n|{'-|' * 2000}\n" + f"|{'x|' * 2000}\n" * (n // 4002),
        "blank lines": "\n" * n + "x",
        "spaces": " " * n + "x",
        "NUL and lone CR": "a\0b\rc d\r\r" * (n // 10),
        "deep list items": "* a\n" * (n // 4),
        "reference definitions": "[a]: /b\n" * (n // 8),
        "emoji": "😀" * (n // 4),
    }


def survive(make: Callable[[], Splitter], text: str, limit: float) -> tuple[float, str]:
    """Split one text in a child process: (seconds, "" or what went wrong)."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def child() -> None:
        splitter = make()
        splitter("# a\n\nwarm up\n")
        began = time.process_time()
        splitter(text)
        send.send(time.process_time() - began)

    process = context.Process(target=child)
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return limit, "hang"
    return (receive.recv(), "") if receive.poll() else (0.0, "crash")
