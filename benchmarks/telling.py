"""How often the language of a short text is told rightly: in prose, headings, code and messages of programs.

    pip download --no-deps django && unzip -q django-*.whl -d messages
    python benchmarks/telling.py [--messages messages] [--out FILE]

Prose is of the shared data sets: paragraphs have 80 to 500 characters, short ones 20 to 79. Code and names count as
English, as every text does in which nothing speaks for another language. Messages are Django's, which exist in each
language that is told apart: long ones have 90 to 400 characters, short ones 30 to 89. They are skipped without
``--messages``, which is the unpacked wheel.
"""

from __future__ import annotations

import argparse
import gettext
import json
import random
import re
import time
from pathlib import Path

from common import machine, markdown_table
from datasets import DATA

from llama_index_contextual.text import tell_language

MOST = 300  # texts of a row
DJANGO = {"nb": "no", "zh_Hans": "zh"}  # its names of languages that are called otherwise here
LANGUAGES = "ar ca da de el es eu fi fr hi hu id it ja ko nb nl pl pt ro ru sv th tr uk zh_Hans".split()  # noqa: SIM905
PLACEHOLDERS = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}|<[^>]+>|&\w+;")
NO_PROSE = re.compile(r"^```.*?^```|\{[*!#%].*?\}|<[^>]*>|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
LENGTHS = {"paragraphs": (80, 500), "short": (20, 79)}
MESSAGES = {"long": (90, 400), "short": (30, 89)}


def prose(name: str, folder: Path) -> dict[str, list[str]]:
    """Return paragraphs, short ones and headings of a folder of Markdown."""
    pages = [NO_PROSE.sub("", path.read_text("utf-8")) for path in sorted(folder.rglob("*.md"))]
    parts = [part.strip() for page in pages for part in re.split(r"\n\s*\n", page)]
    parts = [part for part in parts if not part.startswith(("#", "!", "/", "|", ":", "-", "*", "="))]
    rows = {f"{name}, {key}": _between(parts, *ends) for key, ends in LENGTHS.items()}
    return rows | {
        f"{name}, headings": [line for page in pages for line in re.findall(r"^#+ +(.+)$", page, re.MULTILINE)]
    }


def _between(texts: list[str], least: int, most: int) -> list[str]:
    return [text for text in texts if least <= len(text) <= most]


def queries(folder: str) -> list[str]:
    """Return the questions of a set."""
    lines = (DATA / folder / "queries.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["query"] for line in lines]


def code() -> dict[str, list[str]]:
    """Return lines and names of source code."""
    lines = (DATA / "codebases" / "chunks.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    names = sorted({name for text in texts for name in re.findall(r"[A-Za-z]+(?:_[a-z]+)+|[A-Z][a-z]+[A-Z]\w+", text)})
    return {
        "code": [text[:400] for text in texts],
        "names": [" ".join(names[at : at + 3]) for at in range(0, len(names), 3)],
    }


def messages(folder: Path, language: str) -> dict[str, list[str]]:
    """Return Django's messages in a language."""
    texts = []
    for path in sorted(folder.glob(f"django/**/locale/{language}/LC_MESSAGES/django.mo")):
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]  # noqa: SLF001  no other way
        texts += [" ".join(PLACEHOLDERS.sub("", text).split()) for key, text in catalog.items() if key]
    short = DJANGO.get(language, language)
    return {f"{short} messages, {key}": _between(texts, *ends) for key, ends in MESSAGES.items()}


def main() -> None:
    """Tell the language of each text and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=Path, help="the unpacked wheel of Django")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    pages = DATA / "markdown"
    sets: dict[str, dict[str, list[str]]] = {
        "en": prose("FastAPI", pages / "fastapi" / "en") | prose("Rust book", pages / "rust-book") | code(),
        "es": prose("FastAPI", pages / "fastapi" / "es"),
        "de": prose("judgments", DATA / "german-judgments") | {"questions": queries("german-judgments")},
        "ja": {"questions": queries("japanese-articles")},
    }
    sets["en"] |= {f"questions, {name}": queries(name) for name in ("locomo-notes", "codebases", "realmem-notes")}
    for language in LANGUAGES if options.messages else ():
        code_of = DJANGO.get(language, language)
        sets[code_of] = sets.get(code_of, {}) | messages(options.messages, language)
    rows, seconds, number = [], 0.0, 0
    for language, groups in sets.items():
        for name, texts in groups.items():
            chosen = random.Random(0).sample(sorted(set(texts)), min(MOST, len(set(texts))))  # noqa: S311  no secret
            started = time.process_time()
            told = [tell_language(text) for text in chosen]
            seconds, number = seconds + time.process_time() - started, number + len(chosen)
            if chosen:
                rows.append([language, name, len(chosen), 100 * told.count(language) / len(chosen)])
    table = markdown_table(["language", "texts", "number", "told rightly, %"], rows)
    text = f"{machine()}\n\n{table}\n\n{1000 * seconds / number:.2f} ms of the processor a text, loading included."
    print(text)
    if options.out:
        options.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
