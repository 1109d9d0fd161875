"""LaTeX files, converted to Markdown's headings, lists, tables and fences."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from llama_index_contextual.app.folder.formats import Conversion, Part, declare_format
from llama_index_contextual.app.folder.lines import text_of_lines
from llama_index_contextual.app.folder.markdown import escape, heading

_CODE = "\ue000"  # stands for code until the text is written
_LEVELS = {
    "part": 1,
    "chapter": 1,
    "section": 2,
    "subsection": 3,
    "subsubsection": 4,
    "paragraph": 5,
}
_FRAME_LEVEL = 4
_BLOCK_LEVEL = 5
_MAX_INDENT = 20  # levels of nested lists that are indented
_BRACES = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_OPTIONS = r"[ \t]{0,9}(?:<[^<>]{0,200}>)?(?:\[[^][]{0,200}\]){0,3}[ \t]{0,9}"
# Code, comments, and text in which a percent sign does not start a comment.
_HIDDEN = re.compile(
    r"(?P<kept>\\(?:url|href|path)\{[^{}]*\}|\\verb\*?(?P<quote>[^\w\s*]).{0,200}?(?P=quote))"
    r"|\\begin\{(?P<environment>comment|[BLv]?[vV]erbatim\*?|alltt|lstlisting|minted)\}"
    r"(?P<code>[\s\S]*?)(?:\\end\{(?P=environment)\}|\Z)"
    r"|\\iffalse\b[\s\S]*?(?:\\fi\b|\Z)|(?<!\\)%.*"
)
_HEADING = re.compile(
    rf"\\(?:({'|'.join(_LEVELS)})\*?|frametitle|begin\{{(?:frame|\w*block)\}}){_OPTIONS}{_BRACES}"
)
# Lines are split before commands that start a block, and after headings and rows.
_BEFORE = re.compile(
    r"(?<=\S)[ \t]*(?=\\(?:item\b|begin\{|end\{|(?:sub)*section\*?\{|chapter\*?\{|frametitle\{)"
    rf"|{_CODE})"
)
_AFTER = re.compile(rf"({_HEADING.pattern}|{_CODE}|\\\\)[ \t]*(?=[^\s\[])")
_STYLE = re.compile(rf"\\(?:textbf|textit|emph|texttt|underline|textsc|mbox|url|text){_BRACES}")
_DROPPED = re.compile(
    r"\\(?:label|index|vspace|hspace|usepackage|documentclass|bibliographystyle|pagestyle"
    r"|includegraphics|title|author|date)(?![a-zA-Z])\*?(?:\[[^][]{0,200}\])?"
    rf"(?:{_BRACES})?"
    r"|\\(?:maketitle|centering|hline|noindent|newpage|clearpage|toprule|midrule|bottomrule"
    r"|tableofcontents|addlinespace|endhead|endfirsthead|endfoot|endlastfoot)\b"
    r"|\\(?:cmidrule|cline)(?:\([^()]*\))?\{[^{}]*\}"
    rf"|\\begin\{{tabular[x*]\}}{_BRACES}{_BRACES}"
    r"|\\(?:begin|end)\{\w+\*?\}(?:\[(?:[!htbpHc\d]{1,6}|[^][=]{0,200}=[^][]{0,200})\])?"
    rf"(?:{_BRACES})?"
)
_FORMULA = re.compile(
    r"\\(begin|end)\{(?:align|flalign|alignat|eqnarray|gather|multline|equation)\*?\}"
)
_SPAN = re.compile(rf"\\multicolumn\{{(\d{{1,2}})\}}{_BRACES}{_BRACES}")
_ACCENT = re.compile(
    r"(?<!\\)\\([\"'`^~=.]|[cHvukr](?=\s{0,9}\{))\s{0,9}(\{)?"
    r"(?:\\(?=[ij](?![a-zA-Z])))?([a-zA-Z])(?(2)\})"
)
_ACCENTS = {
    '"': "\u0308",
    "'": "\u0301",
    "`": "\u0300",
    "^": "\u0302",
    "~": "\u0303",
    "=": "\u0304",
    ".": "\u0307",
    "c": "\u0327",
    "H": "\u030b",
    "v": "\u030c",
    "u": "\u0306",
    "k": "\u0328",
    "r": "\u030a",
}
_LETTERS = {
    "ss": "ß",
    "ae": "æ",
    "AE": "Æ",
    "oe": "œ",
    "OE": "Œ",
    "aa": "å",
    "AA": "Å",
    "o": "ø",
    "O": "Ø",
    "l": "ł",
    "L": "Ł",
    "i": "i",
}
_LETTER = re.compile(rf"(?<!\\)\\({'|'.join(_LETTERS)})(?![a-zA-Z])(?:\{{\}}|[ \t]+)?")
_ITEM = re.compile(r"\s*\\item\b\s*(?:\[([^\]]{0,200})\])?\s*")
_LIST = re.compile(r"\\(begin|end|item)\b(?:\{(itemize|enumerate)\})?")
_CELL = re.compile(r"(?<!\\)&")
_ROW_END = re.compile(r"\\\\(?:\[[^][]*\])?\s*$")
_TITLE = re.compile(rf"\\(title|author|date){_BRACES}")


@declare_format("LaTeX", ".tex", kept="code, formulas in LaTeX", left_out="comments")
def read_tex(path: Path) -> Conversion:
    """Return a LaTeX file as Markdown. Formulas are not changed."""
    text = text_of_lines(path.read_bytes()).replace(_CODE, "")
    left_out: Counter[str] = Counter()

    # Keep only the line ends of what is before the document, and nothing of what is after it.
    preamble, begin, body = text.partition("\\begin{document}")
    if not begin:
        preamble = ""
        body = text
    before_end, end, after_end = body.rpartition("\\end{document}")
    if end:
        body = before_end
        left_out["comment"] += bool(after_end.strip())

    # Convert everything except code, which must not be read as commands.
    codes: list[str] = []
    body = _unstyled(_without_code(body, codes, left_out))
    pieces = _AFTER.sub(r"\1\n", _BEFORE.sub("\n", body)).splitlines()
    lines = [""] * preamble.count("\n")
    for line in _convert(pieces):
        if line.strip() == _CODE:
            code_lines = codes.pop(0).split("\n")[1:-1]
            lines += ["```", *code_lines, "```"]
        else:
            lines.append(line)
    return Conversion([Part("\n".join(lines) + "\n")], _metadata(text), left_out)


def _without_code(body: str, codes: list[str], left_out: Counter[str]) -> str:
    """Return a text with marks in place of code, and without comments.

    The code is added to ``codes``. Comments are counted, except those of single lines.
    """

    def replace(match: re.Match[str]) -> str:
        if match["kept"]:
            return match["kept"].replace("&", r"\&")
        if match["environment"] and match["environment"] != "comment":
            codes.append(match["code"])
            return _CODE
        left_out["comment"] += not match[0].startswith("%")
        return "\n" * match[0].count("\n")

    return _HIDDEN.sub(replace, body)


def _metadata(text: str) -> dict[str, str]:
    metadata = {}
    for name, value in _TITLE.findall(text):
        key = "created" if name == "date" else name
        metadata[key] = " ".join(_plain(_unstyled(value)).split())
    return metadata


def _convert(pieces: list[str]) -> Iterator[str]:
    """Yield the Markdown of lines with at most one heading, item, row or environment each."""
    lists = _Lists()
    is_row = False
    is_formula = False
    for line in pieces:
        formula = _FORMULA.search(line)
        if formula:
            is_formula = formula[1] == "begin"
        kept = _DROPPED.sub("", _SPAN.sub(_spanned, line))
        bullet = lists.follow(line)
        is_rule = bool(line.strip()) and not kept.strip() and "\\end{" not in line
        if is_row and is_rule:
            continue
        was_row = is_row
        is_row = not is_formula and _CELL.search(kept) is not None
        title = _HEADING.search(line)
        item = _ITEM.match(kept)
        if title:
            yield _heading(title)
        elif is_row:
            yield _row(kept, is_first=not was_row)
        elif item:
            parts = (bullet, _plain(item[1] or ""), escape(_plain(kept[item.end() :])))
            yield " ".join(filter(None, parts))
        elif kept.strip() or not was_row:  # otherwise it is a rule between rows
            yield escape(_plain(kept).rstrip())


def _spanned(span: re.Match[str]) -> str:
    """Return a cell that spans several columns, followed by empty cells."""
    return span[3] + "&" * (int(span[1]) - 1)


def _heading(title: re.Match[str]) -> str:
    default = _BLOCK_LEVEL if "block" in title[0] else _FRAME_LEVEL
    level = _LEVELS.get(title[1], default)
    return heading(level, _plain(_DROPPED.sub("", title[2])))


def _row(line: str, *, is_first: bool) -> str:
    cells = [_plain(cell).strip().replace("|", r"\|") for cell in _CELL.split(line)]
    row = f"| {' | '.join(cells)} |"
    return f"{row}\n|{' --- |' * len(cells)}" if is_first else row


class _Lists:
    """The open lists and the number of items in each."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._counts: list[int] = []

    def follow(self, line: str) -> str:
        """Open, close and count the lists and items on a line, and return the bullet for an item.

        The bullet is indented, and a number in a numbered list.
        """
        for command, name in _LIST.findall(line):
            if command == "begin" and name:
                self._open(name)
            elif command == "end" and name and self._names:
                self._names.pop()
                self._counts.pop()
            elif command == "item":
                if not self._names:
                    self._open("")
                self._counts[-1] += 1
        is_numbered = self._names[-1:] == ["enumerate"]
        indent = "   " * min(len(self._names) - 1, _MAX_INDENT)
        return indent + (f"{self._counts[-1]}." if is_numbered else "-")

    def _open(self, name: str) -> None:
        self._names.append(name)
        self._counts.append(0)


def _unstyled(text: str) -> str:
    """Return a text without style commands, which can span lines, and with composed accents."""
    text = _ACCENT.sub(_accented, text)
    return _STYLE.sub(r"\1", _STYLE.sub(r"\1", text))  # twice for nested commands


def _accented(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFC", match[3] + _ACCENTS[match[1]])


def _plain(text: str) -> str:
    """Return a text with letters and signs in place of commands."""
    text = _LETTER.sub(lambda letter: _LETTERS[letter[1]], _ROW_END.sub("", text))
    return re.sub(r"\\([%&#_{}$])", r"\1", text).replace("~", " ")
