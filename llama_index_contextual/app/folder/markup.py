"""Other markup than Markdown: reStructuredText, Org and LaTeX.

Each line stays a line, so that a citation by lines holds for the file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Final

from llama_index_contextual.app.folder.formats import Conversion, Part, escape, heading, table_of
from llama_index_contextual.text import decode

_UNDERLINE: Final = re.compile(r"([=\-`:.'\"~^_*+#])\1{2,}\s*$")
_RST_COLUMNS: Final = re.compile(r"=+(?: +=+)+\s*$")
_RST_GRID: Final = re.compile(r"\+(?:-+\+)+\s*$")
_LITERAL: Final = re.compile(r"(\s*)\.\. (code-block|code|sourcecode|parsed-literal|math)::\s*([\w+-]*)")
_EXPLICIT: Final = re.compile(r"(\s*)\.\.(?:\s+(?![\w:.+-]+::|\[|\|[^|]+\||_)|\s*$|\s+_[^:]*:\s*$)")
_AUTO_NUMBER: Final = re.compile(r"(\s*)#\.(?=\s)")
_ORG_HEADING: Final = re.compile(r"(\*+)\s+(?:(?:TODO|DONE)\s+)?(?:\[#\w\]\s+)?(.*?)(?:\s+:[\w@:]+:)?\s*$")
_ORG_KEYWORD: Final = re.compile(r"#\+(title|author|date):\s*(.*)$", re.IGNORECASE)
_ORG_BLOCK: Final = re.compile(r"\s*#\+begin_(\w+)\s*(\w*)", re.IGNORECASE)
_ORG_RULE: Final = re.compile(r"\s*\|[-+]+\|?\s*$")
_LONG_DRAWER: Final = 1000  # lines
_ORG_LITERAL: Final = frozenset({"src", "example", "export"})
_TEX_HEADING: Final = re.compile(
    r"\\(part|chapter|section|subsection|subsubsection|paragraph)\*?(?:\[[^][]{0,200}\])?\{((?:[^{}]|\{[^{}]*\})*)\}"
)
# Where a line is divided: before what begins a thing of its own, and after a heading or a row.
_TEX_BEFORE: Final = re.compile(r"(?<=\S)[ \t]*(?=\\(?:item\b|begin\{|end\{|(?:sub)*section\*?\{|chapter\*?\{))")
_TEX_AFTER: Final = re.compile(rf"({_TEX_HEADING.pattern}|\\begin\{{document\}}|\\\\)[ \t]*(?=[^\s\[])")
_TEX_LEVELS: Final = {"part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5}
_TEX_STYLE: Final = re.compile(r"\\(?:textbf|textit|emph|texttt|underline|textsc|mbox|url|text)\{([^{}]*)\}")
_TEX_DROPPED: Final = re.compile(
    r"\\(?:label|index|vspace|hspace|usepackage|documentclass|bibliographystyle|pagestyle|includegraphics)\*?"
    r"(?:\[[^][]{0,200}\])?(?:\{[^{}]*\})?|\\(?:maketitle|centering|hline|noindent|newpage|clearpage|toprule|midrule|"
    r"bottomrule|tableofcontents)\b"
)
_TEX_ENVIRONMENT: Final = re.compile(r"\\(begin|end)\{(\w+\*?)\}(?:\[[^][]{0,200}\])?(?:\{[^{}]*\})?")
_BEGIN: Final = "\\begin{document}"
_TEX_LISTS: Final = {"itemize": "-", "enumerate": "1."}
_TEX_VERBATIM: Final = frozenset({"verbatim", "lstlisting", "minted"})
_TEX_COMMENT: Final = re.compile(r"(?<!\\)%.*$")
_TEX_TITLE: Final = re.compile(r"\\(title|author|date)\{([^{}]*)\}")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def read_rst(path: Path) -> Conversion:
    """ReStructuredText with Markdown's headings and fences."""
    rst = _Rst(decode(path.read_bytes()).text.expandtabs(8).splitlines())
    rst.read()
    return Conversion([Part("\n".join(rst.result) + "\n")])


class _Rst:
    """Reads reStructuredText block by block; each line of it gives one."""

    def __init__(self, lines: list[str]) -> None:
        self.result: list[str] = []
        self._lines = lines
        self._styles: list[str] = []
        self._numbers: dict[int, int] = {}

    def read(self) -> None:
        """Read all lines."""
        at = 0
        while at < len(self._lines):
            line, end = self._lines[at], at + 1
            if (is_grid := _RST_GRID.match(line)) or _RST_COLUMNS.match(line):
                while end < len(self._lines) and self._lines[end].strip():
                    end += 1
                self.result += (_rst_grid if is_grid else _rst_table)(self._lines[at:end])
            elif literal := _LITERAL.match(line):
                end = self._block(at)
                self._fence("" if literal[2] == "parsed-literal" else literal[3], at, end)
            elif _EXPLICIT.match(line):  # a comment or a target
                end = self._block(at)
                self.result += [""] * (end - at)
            elif found := _rst_heading(self._lines[at : at + 3], self._styles):
                end = at + len(found)
                self.result += found
            elif line.rstrip().endswith("::") and not line.lstrip().startswith(".. ") and self._block(at) > at + 1:
                end = self._block(at)
                is_alone = line.strip() == "::"
                if not is_alone:
                    self.result.append(self._text(line.rstrip()[:-1]))
                self._fence("", at + (not is_alone), end)
            else:
                self.result.append(self._text(line))
            at = end

    def _block(self, at: int) -> int:
        """The end of the lines that are indented below a line, without empty ones behind them."""
        end = at + 1
        for number in range(at + 1, len(self._lines)):
            if self._lines[number].strip():
                if _indent(self._lines[number]) <= _indent(self._lines[at]):
                    break
                end = number + 1
        return end

    def _fence(self, language: str, start: int, end: int) -> None:
        """Write lines as code: the first becomes the begin of a fence, the empty one behind them its end."""
        body = self._lines[start + 1 : end]
        self.result += [f"```{language}", *body]
        if end < len(self._lines) and not self._lines[end].strip():
            self._lines[end] = "```"
        self._lines[end:end] = [] if self._lines[end : end + 1] == ["```"] else ["```"]

    def _text(self, line: str) -> str:
        if line == "```":
            return line
        if number := _AUTO_NUMBER.match(line):
            indent = len(number[1])
            self._numbers = {at: count for at, count in self._numbers.items() if at <= indent}
            self._numbers[indent] = self._numbers.get(indent, 0) + 1
            return f"{number[1]}{self._numbers[indent]}.{line[number.end() :]}"
        if line.strip() and not line[:1].isspace():
            self._numbers.clear()
        return "" if _UNDERLINE.match(line.strip()) else escape(line, keep_lists=True)


def _rst_heading(lines: list[str], styles: list[str]) -> list[str]:
    """The heading that lines begin with, as many lines as it has there; none where they begin with none."""
    line, after, third = [*lines, "", ""][:3]
    if _UNDERLINE.match(line):
        title, style = (after, line[0] * 2) if third.rstrip() == line.rstrip() else ("", "")
    else:
        is_underlined = _UNDERLINE.match(after) and line[:1].strip() and len(after.rstrip()) >= len(line.rstrip()) - 1
        title, style = (line, after[0]) if is_underlined else ("", "")
    if not title.strip():
        return []
    if style not in styles:
        styles.append(style)
    written = heading(styles.index(style) + 1, title)
    return ["", written, ""] if title == after else [written, ""]


def _rst_table(lines: list[str]) -> list[str]:
    """A simple table, whose columns are those of its rules, a line for each line."""
    starts = [match.start() for match in re.finditer("=+", lines[0])]
    ends = [*starts[1:], None]
    rules = [at for at, line in enumerate(lines) if _RST_COLUMNS.match(line)]
    rule = f"|{' --- |' * len(starts)}"
    result = []
    for at, line in enumerate(lines):
        cells = [line[start:end].strip().replace("|", "\\|") for start, end in zip(starts, ends, strict=True)]
        row = f"| {' | '.join(cells)} |"
        has_header = len(rules) > 2  # noqa: PLR2004
        if at in rules:
            row = rule if has_header and at == rules[1] else "" if at else "" if has_header else rule
        result.append(row)
    return result


def _rst_grid(lines: list[str]) -> list[str]:
    """A grid table: its rows one below the other, and behind them as many empty lines as it had more."""
    edges = [at for at, char in enumerate(lines[0]) if char == "+"]
    rows: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("+"):
            rows += [[]] if rows[-1] else []
            continue
        cells = [line[start + 1 : end].strip() for start, end in pairwise(edges)]
        rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1] or [""] * len(cells), cells, strict=True)]
    table = table_of(rows).split("\n")
    return [*table, *[""] * (len(lines) - len(table))]


def read_org(path: Path) -> Conversion:
    """An Org file with Markdown's headings, fences and tables; comments and drawers are left out."""
    org = _Org(decode(path.read_bytes()).text.splitlines())
    at = 0
    while at < len(org.lines):
        at = org.read(at)
    return Conversion([Part("\n".join(org.result) + "\n")], org.metadata, dict(org.left_out))


class _Org:
    """Reads Org line by line, and literal blocks, comments and drawers as a whole."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.result: list[str] = []
        self.metadata: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self._ends: dict[str, list[int]] = defaultdict(list)  # of blocks, by the line that ends them
        for number, line in enumerate(lines):
            if line.lstrip()[:6].lower() == "#+end_":
                self._ends[line.strip().lower()].append(number)

    def read(self, at: int) -> int:
        """Read what begins on a line; return the next one."""
        line, text = self.lines[at], self.lines[at].strip()
        if block := _ORG_BLOCK.match(line):
            return self._block(at, block[1].lower(), block[2])
        if text.startswith(":") and text.endswith(":") and (end := _drawer_end(self.lines, at)):
            return self._skip(at, end + 1)
        found = _ORG_HEADING.match(line)
        if found and found[2].startswith("COMMENT"):
            self.left_out["comment"] += 1
            return self._skip(at, _subtree_end(self.lines, at))
        if keyword := _ORG_KEYWORD.match(line):
            self.metadata[{"date": "created"}.get(keyword[1].lower(), keyword[1].lower())] = keyword[2].strip()
        written = "" if re.match(r"\s*#(?:\s|\+|$)", line) else escape(line, keep_lists=True)
        if found:
            written = heading(len(found[1]), found[2])
        elif text.startswith("|"):
            written = line.replace("+", "|") if _ORG_RULE.match(line) else line
        self.result.append(written)
        return at + 1

    def _skip(self, at: int, end: int) -> int:
        self.result += [""] * (end - at)
        return end

    def _block(self, at: int, kind: str, language: str) -> int:
        """Read a literal block or a comment; of other blocks, and of one that does not end, the first line."""
        ends = self._ends[f"#+end_{kind}"]
        end = ends[bisect_right(ends, at)] if ends and ends[-1] > at else at
        if end == at or kind not in (*_ORG_LITERAL, "comment"):
            return self._skip(at, at + 1)
        if kind == "comment":
            self.left_out["comment"] += 1
            return self._skip(at, end + 1)
        body = [re.sub(r"^(\s*),(?=[*#])", r"\1", line) for line in self.lines[at + 1 : end]]
        self.result += [f"```{language if kind == 'src' else ''}", *body, "```"]
        return end + 1


def _drawer_end(lines: list[str], at: int) -> int:
    """The line that ends a drawer; 0 where none does before the next heading."""
    for number in range(at + 1, min(at + _LONG_DRAWER, len(lines))):
        if lines[number].strip().upper() == ":END:":
            return number
        if lines[number].startswith("*"):
            break
    return 0


def _subtree_end(lines: list[str], at: int) -> int:
    """The line behind the text of a heading and of the headings below it."""
    level = len(lines[at]) - len(lines[at].lstrip("*"))
    following = range(at + 1, len(lines))
    return next(
        (n for n in following if (found := _ORG_HEADING.match(lines[n])) and len(found[1]) <= level), len(lines)
    )


def read_tex(path: Path) -> Conversion:
    """LaTeX with Markdown's headings, lists, tables and fences; formulas stay as they are."""
    text = decode(path.read_bytes()).text
    metadata = {{"date": "created"}.get(key, key): " ".join(value.split()) for key, value in _TEX_TITLE.findall(text)}
    tex = _Tex()
    lines = [] if _BEGIN in text else [_BEGIN]
    for line in [*lines, *_tex_lines(text)]:
        tex.read(line)
    return Conversion([Part("\n".join(tex.lines) + "\n")], metadata)


class _Tex:
    """Reads LaTeX line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._body = False
        self._lists: list[tuple[str, int]] = []  # of the open lists: their mark, and how many items they have
        self._verbatim = False
        self._rows = False

    def read(self, line: str) -> None:
        if self._verbatim:
            self._verbatim = not re.search(r"\\end\{(verbatim|lstlisting|minted)\}", line)
            self.lines.append(line if self._verbatim else "```")
        elif not self._body:
            self._body = _BEGIN in line
            self.lines.append("")
        else:
            self._text(_TEX_COMMENT.sub("", line))

    def _text(self, line: str) -> None:
        for kind, name in _TEX_ENVIRONMENT.findall(line):
            if name in _TEX_VERBATIM:
                self._verbatim = True
                self.lines.append("```")
                return
            if name in _TEX_LISTS and kind == "begin":
                self._lists.append((_TEX_LISTS[name], 0))
            elif name in _TEX_LISTS and self._lists:
                self._lists.pop()
        if found := _TEX_HEADING.search(line):
            self.lines.append(heading(_TEX_LEVELS[found[1]], _unescaped(_plain(found[2]))))
            return
        plain = _plain(_TEX_TITLE.sub("", _TEX_DROPPED.sub("", _TEX_ENVIRONMENT.sub("", line))))
        if r"\item" in plain:
            plain = self._item(plain)
        is_row = re.search(r"(?<!\\)&", line) is not None
        if is_row:
            cells = re.split(r"(?<!\\)&", re.sub(r"\\\\\s*$", "", plain))
            plain = f"| {' | '.join(cell.strip().replace('|', chr(92) + '|') for cell in cells)} |"
            plain += "" if self._rows else f"\n|{' --- |' * len(cells)}"  # the one line that a table has more
        elif self._rows and not plain.strip():
            return  # a rule between rows
        else:
            plain = escape(_unescaped(plain), keep_lists=r"\item" in line)
        self._rows = is_row
        self.lines.append((_unescaped(plain) if is_row else plain).replace("~", " ").rstrip())

    def _item(self, plain: str) -> str:
        """A line that begins an item, with its number or its label."""
        mark, count = self._lists[-1] if self._lists else ("-", 0)
        if self._lists:
            self._lists[-1] = (mark, count + 1)
        shown = f"{count + 1}." if mark == "1." else mark
        plain = re.sub(r"\\item\[([^\]]{0,200})\]\s*", r"\\item \1 ", plain)
        return re.sub(r"\\item\b\s*", f"{'   ' * (len(self._lists) - 1)}{shown} ", plain).lstrip("\n")


def _unescaped(text: str) -> str:
    return re.sub(r"\\([%&#_{}$])", r"\1", text)


def _plain(text: str) -> str:
    """A text without commands of style."""
    for _ in range(3):  # in one another
        text = _TEX_STYLE.sub(r"\1", text)
    return text


def _tex_lines(text: str) -> list[str]:
    """Lines of which each has one heading, item, row or environment at most."""
    lines = []
    for line in text.splitlines():
        if _TEX_COMMENT.match(line):
            lines.append("")
        else:
            lines += _TEX_AFTER.sub(r"\1\n", _TEX_BEFORE.sub("\n", line)).split("\n")
    return lines
