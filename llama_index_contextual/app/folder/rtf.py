"""RTF to HTML, and so to Markdown: paragraphs, headings, lists, tables, notes, and characters of any code page."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Final

from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part
from llama_index_contextual.app.folder.html import NUMBER, html_to_markdown

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN: Final = re.compile(
    r"\\([a-z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-f]{2})|\\([^a-z])|([{}])|([^\\{}\r\n]+)", re.IGNORECASE
)
_SKIPPED: Final = frozenset(
    """
    colortbl pict object datafield fldinst sp nonshppict themedata generator header headerl headerr headerf footer
    footerl footerr footerf listtable listoverridetable revtbl rsidtbl xmlnstbl latentstyles filetbl bkmkstart
    """.split()  # noqa: SIM905
)
_INNER: Final = ("listtext", "pntext", "footnote")  # text within a paragraph
_TABLES: Final = ("stylesheet", "info", "fonttbl")
_RAISED: Final = {"super": "sup", "sub": "sub", "nosupersub": "", "plain": ""}
_LEVELS: Final = 6
_READ: Final = frozenset("shpinst shptxt listtext pntext footnote".split())  # noqa: SIM905  although a program may skip them
_CHARS: Final = {
    "emdash": "—", "endash": "–", "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”", "bullet": "•",
    "tab": " ", "~": " ", "_": "-", "{": "{", "}": "}", "\\": "\\", "emspace": " ", "enspace": " ",
}  # fmt: skip
_INFO: Final = {"title": "title", "author": "author", "subject": "subject"}
_CODE_PAGES: Final = {
    128: "cp932",
    129: "cp949",
    134: "gbk",
    136: "cp950",
    161: "cp1253",
    162: "cp1254",
    163: "cp1258",
    177: "cp1255",
    178: "cp1256",
    186: "cp1257",
    204: "cp1251",
    222: "cp874",
    238: "cp1250",
}  # fmt: skip  of a font, by its character set
_HEADING: Final = re.compile(r"heading (\d)", re.IGNORECASE)


def read_rtf(path: Path) -> Conversion:
    """A text in the Rich Text Format.

    Raises:
        ConversionError: It is none.
    """
    text = path.read_bytes().decode("latin-1")
    if not text.lstrip().startswith("{\\rtf"):
        raise ConversionError("it is damaged or no RTF file. Cure: ignore it.")
    rtf = _Rtf()
    rtf.read(text)
    page = html_to_markdown(rtf.html().encode("utf-16", "surrogatepass").decode("utf-16", "replace"), is_marked=True)
    return Conversion([Part(page.text)], rtf.metadata, dict(rtf.left_out))


@dataclass(slots=True)
class _State:
    """What holds within braces.

    Attributes:
        into: Where text goes: "" into the document.
        fallback: Characters after a letter of Unicode, for programs that do not know it.
        raised: ``"sup"``, ``"sub"`` or "".
        page: The code page of the font.
        number: Of a font or a style that is described.
    """

    into: str = ""
    fallback: int = 1
    raised: str = ""
    page: str = ""
    number: int = 0


def _style(word: str, number: int, state: _State, fonts: dict[int, str]) -> bool:
    """Whether a word is of the style of letters; the state then has it."""
    if word == "f":
        state.page = fonts.get(number, "")
    elif word == "uc":
        state.fallback = max(number, 0)
    elif word in _RAISED:
        state.raised = _RAISED[word]
    else:
        return False
    return True


class _Rtf:
    """Reads RTF, token by token."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self._out: list[str] = []
        self._texts: list[list[str]] = [[]]  # of the paragraph, and of notes and marks within it
        self._row: list[str] = []
        self._rows: list[list[str]] = []
        self._notes: list[str] = []
        self._bytes = bytearray()
        self._styles: dict[int, int] = {}
        self._page = "cp1252"
        self._fonts: dict[int, str] = {}
        self._level = 0
        self._mark: str | None = None
        self._in_table = False

    def read(self, text: str) -> None:
        """Read a whole file."""
        state, stack, skipped, position = _State(), [_State()], 0, 0
        is_ignorable = False
        while match := _TOKEN.search(text, position):
            position = match.end()
            word, value, byte, sign, brace, plain = match.groups()
            number = int(value or 0)
            if byte is None or skipped:
                self._flush(state)
            if brace == "{":
                stack.append(replace(state))
            elif brace:
                self._close(state.into, stack[-1].into)
                state, skipped = stack.pop() if len(stack) > 1 else state, 0
            elif skipped and (byte or plain):
                plain, skipped = (plain or "")[skipped:], max(0, skipped - len(plain or "x"))
                self._add(state, plain)
            elif byte:
                self._bytes.append(int(byte, 16))
            elif word == "u":
                self._add(state, chr(number % 65536))  # halves of a letter are joined at the end
                skipped = state.fallback
            elif word == "bin":
                position += max(number, 0)
            elif word:
                self._word(word.lower(), number if value else None, state, is_ignorable=is_ignorable)
            else:
                self._add(state, _CHARS.get(sign, "") if sign else plain)
            is_ignorable = sign == "*"
        self._flush(state)
        self._paragraph()

    def _word(self, word: str, number: int | None, state: _State, *, is_ignorable: bool) -> None:
        if word in _SKIPPED or (is_ignorable and word not in _READ) or (word in ("deleted", "v") and number != 0):
            self.left_out["picture"] += word == "pict"
            state.into = "nothing"
        elif word in _TABLES or word in _INNER or (word in _INFO and state.into == "info"):
            state.into = word
            self._texts += [[] for _ in range(word in _INNER)]
        elif word in _CHARS:
            self._add(state, _CHARS[word])
        elif state.into in _TABLES:
            self._define(word, number or 0, state)
        elif word == "ansicpg":
            self._page = f"cp{number}"
        elif not _style(word, number or 0, state, self._fonts) and state.into == "":
            self._layout(word, number)
        elif word in ("par", "line"):
            self._add(state, " ")

    def _define(self, word: str, number: int, state: _State) -> None:
        """Note the number of a font or style, and the code page of a font."""
        if word in ("f", "s"):
            state.number = number
        elif word == "fcharset":
            self._fonts[state.number] = _CODE_PAGES.get(number, "")

    def _layout(self, word: str, number: int | None) -> None:
        if word == "pard":
            self._level, self._in_table = 0, False
        elif word == "s":
            self._level = self._styles.get(number or 0, 0)
        elif word == "outlinelevel":
            self._level = number + 1 if number is not None and number < _LEVELS else self._level
        elif word == "intbl":
            self._in_table = True
        elif word == "line":
            self._texts[-1].append("<br>")
        elif word in ("par", "page", "sect"):
            if self._in_table:
                self._texts[-1].append(" ")
            else:
                self._paragraph()
        elif word == "cell":
            self._row.append("".join(self._texts[-1]))
            self._texts[-1].clear()
            self._mark = None
        elif word == "row":
            self._rows.append(self._row)
            self._row = []

    def _add(self, state: _State, text: str) -> None:
        if state.into in _INFO:
            self.metadata[state.into] = self.metadata.get(state.into, "") + text
        elif state.into == "stylesheet" and (match := _HEADING.match(text.strip())):
            self._styles[state.number] = int(match[1])
        elif state.into in ("", *_INNER) and text:
            tag = state.raised
            self._texts[-1].append(f"<{tag}>{escape(text)}</{tag}>" if tag else escape(text))

    def _flush(self, state: _State) -> None:
        """Add the bytes of a code page that were read."""
        page = state.page or self._page
        if self._bytes:
            try:
                text = self._bytes.decode(page, "replace")
            except LookupError:
                text = self._bytes.decode("cp1252", "replace")
            self._bytes.clear()
            self._add(state, text)

    def _close(self, into: str, outer: str) -> None:
        """End a note or a mark of a list."""
        if into == outer or into not in _INNER or len(self._texts) == 1:
            return
        text = "".join(self._texts.pop()).strip()
        if into == "footnote":
            self._notes.append(text)
            self._texts[-1].append(f" [{len(self._notes)}]")
        else:
            self._mark = text

    def _paragraph(self) -> None:
        """End a paragraph, and the table before it."""
        text = "".join(self._texts[-1])
        self._texts[-1].clear()
        if self._rows and (text.strip() or not self._in_table):
            rows = ("".join(f"<td>{cell}</td>" for cell in row) for row in self._rows)
            self._out.append(f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>")
            self._rows = []
        if text.strip():
            if self._level:
                mark = f"{self._mark} " if self._mark and any(map(str.isalnum, self._mark)) else ""
                self._out.append(f"<h{min(self._level, 6)}>{mark}{text}</h{min(self._level, 6)}>")
            elif self._mark is not None:
                mark = NUMBER.format(self._mark) if any(map(str.isalnum, self._mark)) else ""
                self._out.append(f"<ul><li>{mark}{text}</li></ul>")
            else:
                self._out.append(f"<p>{text}</p>")
        self._mark = None

    def html(self) -> str:
        """What was read."""
        self._in_table = False
        self._paragraph()
        notes = [f"<p>[{number}] {text}</p>" for number, text in enumerate(self._notes, start=1)]
        return f"<body>{''.join([*self._out, *notes])}</body>".replace("</ul><ul>", "")
