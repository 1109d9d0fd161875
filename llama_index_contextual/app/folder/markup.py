"""Notebooks, and other markup than Markdown: reStructuredText, Org and LaTeX.

Of markup, each line stays a line, so that a citation by lines holds for the file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part
from llama_index_contextual.text import decode

_LONG_PART: Final = 1500  # characters of a notebook after which a part ends at the next cell
_HEADING: Final = re.compile(r"\s*#{1,6}\s")
_UNDERLINE: Final = re.compile(r"([=\-`:.'\"~^_*+#])\1{2,}\s*$")
_RST_COLUMNS: Final = re.compile(r"=+(?: +=+)+\s*$")
_DIRECTIVE: Final = re.compile(r"\.\. (?:code-block|code|sourcecode|highlight)::\s*(\w*)\s*$")
_ORG_HEADING: Final = re.compile(r"(\*+)\s+(?:(?:TODO|DONE)\s+)?(.*?)(?:\s+:[\w@:]+:)?\s*$")
_ORG_KEYWORD: Final = re.compile(r"#\+(title|author|date):\s*(.*)$", re.IGNORECASE)
_ORG_BLOCK: Final = re.compile(r"\s*#\+(begin|end)_(src|example)\s*(\w*)", re.IGNORECASE)
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
_TEX_SAID: Final = re.compile(r"\\(title|author|date)\{([^{}]*)\}")


def read_notebook(path: Path) -> Conversion:
    """Return a Jupyter notebook: cells in order, code as fences, outputs left out.

    A part begins at a heading, and at the next cell where it is long; ``cell`` is the number of its first one.
    """
    notebook = json.loads(decode(path.read_bytes()).text)
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ConversionError("it is no Jupyter notebook of version 4. Cure: save it anew, or ignore it.")
    about: dict[str, Any] = notebook.get("metadata") or {}
    language = str((about.get("language_info") or about.get("kernelspec") or {}).get("name") or "python")
    parts: list[tuple[int, list[str]]] = []
    for number, cell in enumerate(notebook["cells"], start=1):
        source = cell.get("source") or ""
        text = "".join(source) if isinstance(source, list) else str(source)
        if not text.strip():
            continue
        if cell.get("cell_type") == "code":
            fence = "````" if "```" in text else "```"
            text = f"{fence}{language}\n{text.rstrip()}\n{fence}"
        if not parts or _HEADING.match(text) or sum(map(len, parts[-1][1])) > _LONG_PART:
            parts.append((number, []))
        parts[-1][1].append(text.rstrip())
    authors = [author.get("name") for author in about.get("authors") or [] if isinstance(author, dict)]
    return Conversion(
        [Part("\n\n".join(texts) + "\n", str(number), {"cell": number}) for number, texts in parts],
        {"title": str(about.get("title") or ""), "author": ", ".join(map(str, filter(None, authors)))},
    )


def read_rst(path: Path) -> Conversion:
    """Return reStructuredText with Markdown's headings and fences."""
    lines = decode(path.read_bytes()).text.splitlines()
    styles: list[str] = []
    result: list[str] = []
    at, is_code = 0, False
    while at < len(lines):
        line, end = lines[at], at + 1
        if is_code and line[:1].strip():  # the first line that is not indented
            result[-1] = f"{result[-1]}\n```" if result[-1].strip() else "```"
            is_code = False
        if is_code:
            result.append(line)
        elif _RST_COLUMNS.match(line):
            end = next((number for number in range(end, len(lines)) if not lines[number].strip()), len(lines))
            result += _rst_table(lines[at:end])
        elif directive := _DIRECTIVE.match(line):
            result.append(f"```{directive[1]}")
            is_code = True
        else:
            heading = _rst_heading(lines[at : at + 3], styles)
            end += max(len(heading) - 1, 0)
            result += heading or [line]
        at = end
    return Conversion([Part("\n".join([*result, *(["```"] if is_code else [])]) + "\n")])


def _rst_heading(lines: list[str], styles: list[str]) -> list[str]:
    """Return the heading that lines begin with, as many lines as it has there; none where they begin with none."""
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
    heading = f"{'#' * min(styles.index(style) + 1, 6)} {title.strip()}"
    return ["", heading, ""] if title == after else [heading, ""]


def _rst_table(lines: list[str]) -> list[str]:
    """Return a simple table, whose columns are those of its rules, a line for each line."""
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


def read_org(path: Path) -> Conversion:
    """Return an Org file with Markdown's headings, fences and tables."""
    metadata: dict[str, str] = {}
    result: list[str] = []
    drawer = False
    for line in decode(path.read_bytes()).text.splitlines():
        if keyword := _ORG_KEYWORD.match(line):
            metadata[{"date": "created"}.get(keyword[1].lower(), keyword[1].lower())] = keyword[2].strip()
            result.append("")
        elif line.strip() in {":PROPERTIES:", ":LOGBOOK:"} or drawer:
            drawer = line.strip() != ":END:"
            result.append("")
        elif heading := _ORG_HEADING.match(line):
            result.append(f"{'#' * min(len(heading[1]), 6)} {heading[2]}")
        elif block := _ORG_BLOCK.match(line):
            result.append("```" + (block[3] if block[1].lower() == "begin" and block[2].lower() == "src" else ""))
        elif line.lstrip().startswith("#+"):
            result.append("")
        elif re.match(r"\s*\|[-+]+\|?\s*$", line):
            result.append(line.replace("+", "|"))
        else:
            result.append(line)
    return Conversion([Part("\n".join(result) + "\n")], metadata)


def read_tex(path: Path) -> Conversion:
    """Return LaTeX with Markdown's headings, lists, tables and fences; formulas stay as they are."""
    text = decode(path.read_bytes()).text
    metadata = {{"date": "created"}.get(key, key): " ".join(value.split()) for key, value in _TEX_SAID.findall(text)}
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
        self._lists: list[str] = []
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
                self._lists.append(_TEX_LISTS[name])
            elif name in _TEX_LISTS and self._lists:
                self._lists.pop()
        if heading := _TEX_HEADING.search(line):
            self.lines.append(f"{'#' * _TEX_LEVELS[heading[1]]} {_plain(heading[2])}")
            return
        plain = _plain(_TEX_SAID.sub("", _TEX_DROPPED.sub("", _TEX_ENVIRONMENT.sub("", line))))
        mark = self._lists[-1] if self._lists else "-"
        plain = re.sub(r"\\item\b\s*", f"{'   ' * (len(self._lists) - 1)}{mark} ", plain)
        is_row = re.search(r"(?<!\\)&", line) is not None
        if is_row:
            cells = re.split(r"(?<!\\)&", re.sub(r"\\\\\s*$", "", plain))
            plain = f"| {' | '.join(cell.strip() for cell in cells)} |"
            plain += "" if self._rows else f"\n|{' --- |' * len(cells)}"  # the one line that a table has more
        elif self._rows and not plain.strip():
            return  # a rule between rows
        self._rows = is_row
        self.lines.append(re.sub(r"\\([%&#_{}])", r"\1", plain).replace("~", " ").rstrip())


def _plain(text: str) -> str:
    """Return text without commands of style."""
    for _ in range(3):  # in one another
        text = _TEX_STYLE.sub(r"\1", text)
    return text


def _tex_lines(text: str) -> list[str]:
    """Return lines of which each has one heading, item, row or environment at most."""
    lines = []
    for line in text.splitlines():
        if _TEX_COMMENT.match(line):
            lines.append("")
        else:
            lines += _TEX_AFTER.sub(r"\1\n", _TEX_BEFORE.sub("\n", line)).split("\n")
    return lines
