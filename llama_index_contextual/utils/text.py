"""Helpers for texts: file suffixes, tags, code, encoded bytes, and safe terminal output."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath

from llama_index_contextual.utils.errors import ContextualWarning

# Suffixes of Markdown files, including MDX, Quarto, R Markdown and Cursor rules. They are in lower
# case, but "NOTES.MD" is Markdown, too.
MARKDOWN_SUFFIXES = (".md", ".markdown", ".mdown", ".mkd", ".mdx", ".mdc", ".qmd", ".rmd")
MARKDOWN_TYPE = "text/markdown"  # the media type
# Suffixes of source code. The first ones are those of languages in which every function has a
# keyword, so that "len(rest) > 0 {" is not read as a C function.
KEYWORD_SUFFIXES = tuple(
    ".ex .exs .go .jl .kt .kts .lua .php .pl .pm .ps1 "  # noqa: SIM905
    ".py .pyi .r .rb .rs .scala .swift .zig".split()
)
SOURCE_SUFFIXES = KEYWORD_SUFFIXES + tuple(
    ".bash .c .cc .cjs .clj .cpp .cs .cxx .dart .erl .fs .groovy .h .hh .hpp .hs "  # noqa: SIM905
    ".java .js .jsx .m .mjs .ml .mm .sh .sql .tcl .ts .tsx .vb .vue".split()
)
# The name, heading and text of "[[Name#Heading|Text]]" in Obsidian and wikis, with a leading "!"
# for embedded files. In tables it is "[[Name\\|Text]]".
WIKI_LINK = re.compile(
    r"!?\[\[([^\[\]|#\n\\]{0,300})(#[^\[\]|\n\\]{0,300})?(?:\\?\|([^\[\]\n]{0,300}))?\]\]"
)
_SIZE = re.compile(r"\d{1,5}(?:x\d{1,5})?")  # of "![[a.png|400]]" and "![[a.png|400x300]]"
_SUFFIX = re.compile(r"(?<!\A)\.[^\W\d][\w+-]*\Z")
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Characters that move the cursor, ring the bell, start a terminal command or change the direction
# of a line. ASCII ones are shown as Unicode control pictures (from U+2400). The other ones have no
# picture and are shown as escapes.
_PICTURES: dict[int, int | str | None] = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},
    **{code: f"\\x{code:x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))},
    0x7F: 0x2421,
    0x0D: None,
    # Invisible characters: zero-width spaces, direction marks, tags.
    **dict.fromkeys(
        (0x200B, 0x200E, 0x200F, *range(0x2060, 0x2066), 0xFEFF, *range(0xE0000, 0xE0080))
    ),
}


def wiki_text(link: re.Match[str]) -> str:
    """Return the text of a match of :data:`WIKI_LINK`.

    It is "" if the link has no text, or only the size of a picture.
    """
    text = (link[3] or "").strip()
    is_size = link[0].startswith("!") and _SIZE.fullmatch(text)
    return "" if is_size else text


def short_hash(value: object) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a value's JSON, the same on every machine.

    Args:
        value: Any value. Objects that JSON does not support are represented by their ``str``.
    """
    text = json.dumps(value, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return digest[:16]


def plain_digits(text: str) -> str:
    """Return a text of the same length in which digits of other scripts are ASCII digits."""
    if text.isascii():
        return text
    return _FOREIGN_DIGIT.sub(lambda digit: str(int(digit[0])), text)


def absolute_path(path: str | Path) -> Path:
    """Return the absolute path without symlinks. Unlike ``Path.resolve``, it accepts link loops."""
    expanded = os.path.expanduser(path)  # noqa: PTH111  unlike Path, it accepts unknown users
    return Path(os.path.realpath(expanded))


def printable(text: str, *, one_line: bool = False) -> str:
    """Return a text that a terminal shows without interpreting it.

    Args:
        text: The text.
        one_line: Whether newlines are also replaced by visible signs, as in a name.
    """
    visible = text.translate(_PICTURES)
    if not one_line:
        return visible
    return visible.replace("\n", "\u2424").replace("\t", " ")


def printable_lines(lines: Iterable[str]) -> str:
    """Return lines as safe terminal output, in which no line contains a line break."""
    return "\n".join(printable(line, one_line=True) for line in lines)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the right form: ``1 chunk``, ``2,000 chunks``."""
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith("x") else "s"
    return f"{number:,} {noun}{ending}"


def did_you_mean(names: Iterable[str]) -> str:
    """Return a question that suggests the distinct names; "" if there are none."""
    listed = ", ".join(dict.fromkeys(names))
    return f"Did you mean: {listed}?" if listed else ""


def is_markdown(path: str, suffixes: Sequence[str] = MARKDOWN_SUFFIXES) -> bool:
    """Return whether a file with this name contains Markdown.

    Args:
        path: The path of the file, or "".
        suffixes: The suffixes of Markdown files in lower case; ``"*"`` means any. A name without a
            suffix, such as ``Release 2.0``, is Markdown unless this is empty.
    """
    if not suffixes or "*" in suffixes:
        return bool(suffixes)
    suffix = _SUFFIX.search(PurePosixPath(path).name.lower())
    return suffix is None or suffix[0] in suffixes


def replace_surrogates(text: str) -> tuple[str, int]:
    """Replace lone surrogates, which no store accepts, by U+FFFD. Return the text and the count."""
    try:
        text.encode()  # much faster than searching for them
    except UnicodeEncodeError:
        return _SURROGATE.subn("\ufffd", text)
    return text, 0


def storable(text: str) -> tuple[str, int]:
    """Replace NULs and lone surrogates by U+FFFD. Return the text and the count."""
    clean, count = replace_surrogates(text)
    return clean.replace("\0", "\ufffd"), count + clean.count("\0")


def without_surrogates(text: str, name: str) -> str:
    """Replace lone surrogates by U+FFFD, with a warning about ``name`` if there are any."""
    clean, count = replace_surrogates(text)
    if count:
        message = f"{name} contains lone surrogates, which are not text; each became U+FFFD"
        warnings.warn(message, ContextualWarning, stacklevel=2)
    return clean


def lines_of(text: str) -> Iterator[str]:
    """Return the lines of a text with their ends (LF, CR LF or CR), as citations count them.

    ``str.splitlines`` would also split at form feeds and U+2028.
    """
    return io.StringIO(text, newline="")


# Fenced code, even without a closing fence, and code spans on one line.
CODE = r"^ {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,}).*(?:\n(?! {0,3}(?P=fence)[`~]*[ \t\r]*$).*)*(?:\n.*)?|`[^`\n]{1,1000}`"  # noqa: E501
_ONLY_CODE = re.compile(CODE, re.MULTILINE)
_VISIBLE = re.compile(r"\S")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])\s")
# Not a link target, ](#here) or "]: #here", and not kramdown's id of a block, {: #here}. The
# expression starts with "#", because searching for a fixed character is fast.
_TAG = re.compile(r"#(?<![^\s(]#)(?<!\]\(#)(?<!\]: #)(?<!\{ #)(?<!\{: #)([\w/-]{1,200})")


def without_code(text: str) -> str:
    """Return a text of the same length in which code is replaced by spaces."""
    if "`" not in text and "~~~" not in text:
        return text
    return _ONLY_CODE.sub(lambda code: _VISIBLE.sub(" ", code[0]), text)


def inline_tags(text: str) -> list[str]:
    """Return the distinct tags in a text, such as ``#health/running``, without the ``#``.

    As in Obsidian, a tag follows white space or a parenthesis. It consists of letters, digits,
    ``_``, ``-`` and ``/``, with at least one letter. Tags in code, indented code and quotations are
    ignored.
    """
    if not _TAG.search(text):
        return []
    tags: dict[str, str] = {}
    is_in_list = False
    for line in lines_of(without_code(text)):
        is_indented = line.startswith(("    ", "\t"))
        if line.strip() and not is_indented:
            is_in_list = _LIST_ITEM.match(line) is not None
        if line.lstrip().startswith(">") or (is_indented and not is_in_list):
            continue
        for match in _TAG.finditer(line):
            tag = match[1].strip("/")
            if tag.strip("0123456789/-_"):
                tags.setdefault(tag.casefold(), tag)
    return list(tags.values())


# Pictures and other files that are encoded in a text: data URIs, unbroken runs, and lines as in
# mail.
_NEXT = r"(?:[^\w+/=\\\r\n-][^\w/\\\r\n]{0,9})?(?:\r\n?|\n)[^\w/\\\r\n`#-]{0,19}"  # to the next line of mail, or of code  # noqa: E501
_ENCODED = re.compile(
    r"(?<![\w+/\\-])(?:(?i:(?P<uri>data:)(?:(?<=([\"'])data:)|)(?:[\w.+-]{1,99}/[\w.+-]{1,99})?(?:;[\w=.+-]{1,99}){0,9},"
    r"(?(2)(?:(?!\2)[^\n]){32,}(?=\2)|[^\s\"'<>()\[\]\\]{32,}))"
    rf"|[\w+/=\\-]{{60,}}(?:{_NEXT}[\w+/=\\-]{{60,}})+"
    rf"(?:{_NEXT}(?:[\w+/\\-]{{20,}}={{0,2}}|[\w+/\\-]{{2,}}={{1,2}})(?=[ "
    rf"\t]*$|[\"'\\]))?|[\w+/=\\-]{{120,}}"
    r"|(?:(?:0x|\\x|%)[0-9A-Fa-f]{2}[\s,]{0,9}){65,}|(?:[0-9A-Fa-f]{2}:\s{0,30}){65,}[0-9A-Fa-f]{2})",
    re.MULTILINE | re.ASCII,
)
_BASE32 = re.compile("[A-Z2-7]+=*")
_AROUND_LINES = re.compile(r"\\n|0x|\\x|[^\w+/=\\-]+")
_SEPARATORS = re.compile(r"[-_/+=\\]+")
_WORD_OR_NUMBER = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]+|\d+)\Z")  # as in the path of a long URL
_HEX = re.compile(r"[0-9a-fA-F]+")
_LONGEST_CHECKSUM = 128  # hexadecimal digits: a SHA-512, which people search for
_SAMPLE = 2000  # characters of a run that are examined


@lru_cache(maxsize=4)  # each slice of a document needs those of the whole document
def encoded_runs(text: str) -> list[tuple[int, int]]:
    """Return the spans of encoded bytes in a text: data URIs, base64 or hexadecimal digits."""
    runs = _ENCODED.finditer(text)
    return [run.span() for run in runs if run["uri"] or _is_encoded(run[0])]


def readable(text: str, start: int = 0, end: int | None = None) -> str:
    """Return a text, or a part of it, with ``…`` in place of encoded bytes, as it is embedded."""
    end = len(text) if end is None else end
    shown = ""
    for run_start, run_end in encoded_runs(text):
        if run_end > start and run_start < end:
            shown += f"{text[start : max(run_start, start)]}…"
            start = min(run_end, end)
    return shown + text[start:end]


def _is_encoded(run: str) -> bool:
    """Return whether a run is encoded bytes: letters of both cases, digits, and few words."""
    sample = _AROUND_LINES.sub("", run[:_SAMPLE])
    if _HEX.fullmatch(sample):
        is_one_kind = sample.isalpha() or sample.isdecimal()
        return not is_one_kind and len(sample) > _LONGEST_CHECKSUM
    is_one_case = sample in {sample.lower(), sample.upper()}
    if is_one_case and not _BASE32.fullmatch(sample):
        return False
    if not any(map(str.isdecimal, sample)):
        return False
    words = filter(_WORD_OR_NUMBER.match, _SEPARATORS.split(sample))
    return 2 * sum(map(len, words)) <= len(sample)
