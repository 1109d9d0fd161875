"""Other markup than Markdown: reStructuredText, Org, LaTeX and notebooks.

Each line of the first three stays a line where it can, so that a citation by lines holds for the file.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.formats import Conversion, ConversionError, Part, escape, heading
from llama_index_contextual.text import decode

_UNDERLINE: Final = re.compile(r"([=\-`:.'\"~^_*+#])\1{2,}\s*$")
_RST_RULE: Final = re.compile(r"(?:=+(?: +=+)+|\+(?:[-=]+\+)+)\s*$")
_EXPLICIT: Final = re.compile(r"(\s*)\.\.(?:\s+(?![\w:.+-]+::|\[|\|[^|]+\||_)|\s*$|\s+_[^:]*:\s*$)")
_RST_ROLE: Final = re.compile(
    r"(?<![\w:.+`-])(?::[\w:.+-]{1,60}:)?`([^`<]{1,300}?)(?:\s{0,3}<[^`>]{0,300}>)?`_{0,2}(?!`)"
)
_ORG_HEADING: Final = re.compile(r"(\*+)\s+(.*?)(?:\s+:[\w@:]+:)?\s*$")
_ORG_STATES: Final = re.compile(r"^#\+(?:SEQ_|TYP_)?TODO:(.*)$", re.IGNORECASE | re.MULTILINE)
_ORG_LINK: Final = re.compile(r"\[\[(?:[^][]*\]\[)?([^][]*)\]\]")
_ORG_COOKIE: Final = re.compile(r"^\[#\w\]\s+|[ \t]{0,9}\[\d{0,9}(?:/\d{0,9}|%)\]")
_ORG_BLOCK: Final = re.compile(r"\s*#\+begin_(src|example|export|comment)\b\s*(\w*)", re.IGNORECASE)
_LEVELS: Final = {"part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5}
_BRACES: Final = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_OPTIONS: Final = r"[ \t]{0,9}(?:<[^<>]{0,200}>)?(?:\[[^][]{0,200}\]){0,3}[ \t]{0,9}"
_TEX_HEADING: Final = re.compile(rf"\\(?:({'|'.join(_LEVELS)})\*?|frametitle|begin\{{frame\}}){_OPTIONS}{_BRACES}")
_TEX_BLOCK: Final = re.compile(rf"\\begin\{{(?:alert|example)?block\}}{_OPTIONS}{_BRACES}")
_TEX_NAMED: Final = re.compile(r"\\begin\{\w+\*?\}\[(?=[^][=]*[A-Z ])([^][=]{3,200})\](?!\{)\s*")  # a theorem
_TEX_CODE: Final = re.compile(
    r"\\(?:verb\*?|(?:lstinline|mintinline)(?:\[[^][]*\])?(?:\{\w+\}(?=[^\w\s]))?)(?:([^\w\s{*])(.*?)\1|\{([^{}]*)\})"
)
_KEPT: Final = {ord(sign): 0xE000 + ord(sign) for sign in "\\{}%&~$_#^"}  # signs of code, until the text is written
_SIGNS: Final = {kept: sign for sign, kept in _KEPT.items()}
_TEX_OPENS: Final = re.compile(
    r"\\begin\{(comment|[BLv]?[vV]erbatim\*?|alltt|lstlisting|minted)\}|\\(comment|iffalse)\b|(?<!\\)%"
)
# Where a line is divided: before what begins a thing of its own, and after a heading or a row.
_TEX_BEFORE: Final = re.compile(
    r"(?<=\S)[ \t]*(?=\\(?:item\b|begin\{|end\{|(?:sub)*section\*?\{|chapter\*?\{|frametitle\{))"
)
_TEX_AFTER: Final = re.compile(rf"({_TEX_HEADING.pattern}|\\begin\{{document\}}|\\\\)[ \t]*(?=[^\s\[])")
# Braces after a command of style, or that only group.
_TEX_STYLE: Final = re.compile(
    r"(?:\\(?:textbf|textit|emph|texttt|underline|textsc|mbox|url|text)|(?<![\w\\}\])^*$]))\{([^{}]*)\}"
)
_TEX_DROPPED: Final = re.compile(
    r"\\(?:label|index|vspace|hspace|usepackage|documentclass|bibliographystyle|pagestyle|includegraphics|title|author"
    r"|date)\*?(?:\[[^][]{0,200}\])?(?:\{[^{}]*\})?|\\(?:maketitle|centering|hline|noindent|newpage|clearpage|toprule"
    r"|midrule|bottomrule|tableofcontents|addlinespace|endhead|endfirsthead|endfoot|endlastfoot)\b"
    r"|\\(?:cmidrule|cline)(?:\([^()]*\))?\{[^{}]*\}"
    rf"|\\begin\{{tabular[x*]\}}{_BRACES}{_BRACES}"
    rf"|\\(?:begin|end)\{{\w+\*?\}}(?:\[[^][]{{0,200}}\])?(?:{_BRACES})?"
)
_TEX_FORMULA: Final = re.compile(r"\\(begin|end)\{(?:align|flalign|alignat|eqnarray|gather|multline|equation)\*?\}")
_TEX_SPAN: Final = re.compile(rf"\\multicolumn\{{(\d{{1,2}})\}}{_BRACES}{_BRACES}")
_TEX_ACCENT: Final = re.compile(
    r"(?<!\\)\\(?:([\"'`^~=.])\s*(?:\{\\?([a-zA-Z])\}|\\([ij])(?![a-zA-Z])\s*|([a-zA-Z]))|([cHvukr])\s*\{\\?([a-zA-Z])\})"
)
_ACCENTS: Final = dict(
    zip("\"'`^~=.cHvukr", "\u0308\u0301\u0300\u0302\u0303\u0304\u0307\u0327\u030b\u030c\u0306\u0328\u030a", strict=True)
)
_TEX_LETTER: Final = re.compile(r"(?<!\\)\\(ss|ae|AE|oe|OE|aa|AA|o|O|l|L|i)(?![a-zA-Z])(?:\{\}|[ \t]+)?")
_LETTERS: Final = dict(zip("ss ae AE oe OE aa AA o O l L i".split(), "ßæÆœŒåÅøØłŁi", strict=True))  # noqa: SIM905
_TEX_ITEM: Final = re.compile(r"\s*\\item\b\s*(?:\[([^\]]{0,200})\])?\s*")
_TEX_COMMENT: Final = re.compile(r"(\\(?:url|href|path)\{[^{}]*\})|(?<!\\)%.*$")
_TEX_CELL: Final = re.compile(r"(?<!\\)&")
_TEX_TITLE: Final = re.compile(r"\\(title|author|date)\{([^{}]*)\}")
_LONG_PART: Final = 1500  # characters of a notebook after which a part ends at the next cell
_LONG_OUTPUT: Final = 2000  # characters of an output that are kept
_DATA: Final = re.compile(r"data:[\w/+.-]{1,60};base64,[A-Za-z0-9+/=]*")


class _Markup:
    """Writes the lines of a text, one by one or some at once, as Markdown."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.result: list[str] = []
        self.metadata: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self._endless: set[str] = set()

    def converted(self) -> Conversion:
        """The whole text."""
        at = 0
        while at < len(self.lines):
            at = self.read(at)
        return Conversion([Part("\n".join(self.result) + "\n")], self.metadata, self.left_out)

    def read(self, at: int) -> int:
        """Write what begins on a line; the number of the next line."""
        raise NotImplementedError

    def skip(self, at: int, end: int, what: str = "") -> int:
        """Leave lines out, so that those behind them keep their numbers."""
        self.result += [""] * (end - at)
        self.left_out[what] += bool(what)
        return end

    def end(self, at: int, text: str) -> int:
        """The first line from ``at`` on that holds a text, in any case; 0 for none."""
        following = () if text in self._endless else range(at, len(self.lines))
        end = next((number for number in following if text in self.lines[number].lower()), 0)
        self._endless |= set() if end else {text}
        return end


def read_rst(path: Path) -> Conversion:
    """ReStructuredText with Markdown's headings, fences and tables."""
    return _Rst(decode(path.read_bytes()).text.expandtabs(8)).converted()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class _Rst(_Markup):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._styles: list[str] = []
        self._numbers: dict[int, int] = {}

    def read(self, at: int) -> int:
        line = self.lines[at]
        if _RST_RULE.match(line):
            end = next((n for n in range(at, len(self.lines)) if not self.lines[n].strip()), len(self.lines))
            self.result += _rst_table(self.lines[at:end])
            return end
        literal = re.match(r"\s*\.\. (?:(?:code-block|code|sourcecode|math)::\s*([\w+-]*)|parsed-literal::)", line)
        if literal or (line.rstrip().endswith("::") and not line.lstrip().startswith(".. ")):
            end = self._block_end(at)
            if literal or end > at + 1:
                if not literal and line.strip() != "::":
                    self.result.append(self._text(line.rstrip()[:-1]))
                    at += 1
                # The first line becomes the begin of a fence, the empty one behind the block its end.
                self.result += [f"```{(literal and literal[1]) or ''}", *self.lines[at + 1 : end], "```"]
                return end + (end < len(self.lines) and not self.lines[end].strip())
        if _EXPLICIT.match(line):  # a comment or a target
            return self.skip(at, self._block_end(at))
        found = self._heading(at) or [self._text(line)]
        self.result += found
        return at + len(found)

    def _block_end(self, at: int) -> int:
        """The end of the lines that are indented below a line, without empty ones behind them."""
        end = at + 1
        for number in range(at + 1, len(self.lines)):
            if self.lines[number].strip():
                if _indent(self.lines[number]) <= _indent(self.lines[at]):
                    break
                end = number + 1
        return end

    def _text(self, line: str) -> str:
        if number := re.match(r"(\s*)#\.(?=\s)", line):
            indent = len(number[1])
            self._numbers = {at: count for at, count in self._numbers.items() if at <= indent}
            self._numbers[indent] = self._numbers.get(indent, 0) + 1
            return f"{number[1]}{self._numbers[indent]}.{line[number.end() :]}"
        if line.strip() and not line[:1].isspace():
            self._numbers.clear()
        return "" if _UNDERLINE.match(line.strip()) else escape(line, keep_lists=True)

    def _heading(self, at: int) -> list[str]:
        """The heading that begins on a line, as many lines as it has there; none where none begins."""
        line, after, third = [*self.lines[at : at + 3], "", ""][:3]
        title, style = "", ""
        if _UNDERLINE.match(line):
            title, style = (after, line[0] * 2) if third.rstrip() == line.rstrip() else ("", "")
        elif _UNDERLINE.match(after) and line[:1].strip() and len(after.rstrip()) >= len(line.rstrip()) - 1:
            title, style = line, after[0]
        if not title.strip():
            return []
        if style not in self._styles:
            self._styles.append(style)
        written = heading(self._styles.index(style) + 1, _RST_ROLE.sub(r"\1", title))
        return ["", written, ""] if title == after else [written, ""]


def _rst_table(lines: list[str]) -> list[str]:
    """A table of lines, whose columns begin and end where its first rule shows them."""
    is_grid = lines[0].startswith("+")
    starts = [match.start() for match in re.finditer(r"\+|=+", lines[0])]
    spans = [slice(start + is_grid, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    rows: list[list[str]] = []
    goes_on = False
    for line in lines:
        cells = [line[span].strip() for span in spans[: len(spans) - is_grid]]
        if _RST_RULE.match(line):
            goes_on = False
        elif goes_on and (is_grid or not cells[0]):
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
        else:
            rows.append(cells)
            goes_on = True
    table = formats.table_of(rows).split("\n")
    return [*table, *[""] * (len(lines) - len(table))]


def read_org(path: Path) -> Conversion:
    """An Org file with Markdown's headings, fences and tables; comments and drawers are left out."""
    return _Org(decode(path.read_bytes()).text).converted()


class _Org(_Markup):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        words = re.findall(r"[^\s|()]+(?=[\s|(]|$)", " ".join(["TODO DONE", *_ORG_STATES.findall(text)]))
        self._state = re.compile(rf"(?:{'|'.join(map(re.escape, words))})(?:\s+|$)")

    def read(self, at: int) -> int:
        line, text, found = self.lines[at], self.lines[at].strip(), _ORG_HEADING.match(self.lines[at])
        kind, language = block.groups() if (block := _ORG_BLOCK.match(line)) else ("", "")
        if kind and (end := self.end(at, f"#+end_{kind.lower()}")):
            if kind.lower() == "comment":
                return self.skip(at, end + 1, "comment")
            body = [re.sub(r"^(\s*),(?=[*#])", r"\1", line) for line in self.lines[at + 1 : end]]
            self.result += [f"```{language if kind.lower() == 'src' else ''}", *body, "```"]
            return end + 1
        if text.startswith(":") and text.endswith(":"):  # a drawer, in the text below one heading
            following = range(at + 1, min(at + 1000, len(self.lines)))
            end = next((n for n in following if self.lines[n].strip().lower().startswith((":end:", "*"))), at)
            if self.lines[end].strip().lower() == ":end:":
                return self.skip(at, end + 1)
        if found and found[2].startswith("COMMENT"):
            above = re.compile(rf"\*{{1,{min(len(found[1]), 99)}}}\s")
            following = range(at + 1, len(self.lines))
            end = next((n for n in following if above.match(self.lines[n])), len(self.lines))
            return self.skip(at, end, "comment")
        if keyword := re.match(r"(?i)#\+(title|author|date):\s*(.*)$", line):
            self.metadata[{"date": "created"}.get(keyword[1].lower(), keyword[1].lower())] = keyword[2].strip()
        if found:
            state = self._state.match(found[2])
            title = _ORG_COOKIE.sub("", found[2][state.end() if state else 0 :])
            line = heading(len(found[1]), _ORG_LINK.sub(r"\1", title))
        elif caption := re.match(r"(?i)\s*#\+caption(?:\[.*?\])?:\s*", line):
            line = escape(line[caption.end() :])
        elif text.startswith("|"):
            line = line.replace("+", "|") if re.match(r"\s*\|[-+]+\|?\s*$", line) else line
        else:
            line = "" if re.match(r"\s*#(?:\s|\+|$)", line) else escape(line, keep_lists=True)
        self.result.append(line)
        return at + 1


def read_tex(path: Path) -> Conversion:
    """LaTeX with Markdown's headings, lists, tables and fences; formulas stay as they are."""
    return _Tex(decode(path.read_bytes()).text).converted()


class _Tex(_Markup):
    def __init__(self, text: str) -> None:
        preamble, begin, body = text.partition("\\begin{document}")
        body, end, rest = (body if begin else text).rpartition("\\end{document}")
        super().__init__(body if end else rest)
        self.left_out["comment"] += bool(end and rest.strip())
        self.result = [""] * (preamble.count("\n") if begin else 0)
        found = ((key, " ".join(_plain(value).split())) for key, value in _TEX_TITLE.findall(text))
        self.metadata = {{"date": "created"}.get(key, key): value for key, value in found}
        self._lists: list[tuple[str, int]] = []  # of the open lists: their kind, and how many items they have
        self._is_row = self._is_formula = False

    def read(self, at: int) -> int:
        line = self.lines[at] = _TEX_CODE.sub(
            lambda code: f"`{(code[2] or code[3] or '').translate(_KEPT)}`", self.lines[at]
        )
        opened = _TEX_OPENS.search(line)
        if opened and (kind := opened[1] or opened[2]):  # a comment, or code
            closing = f"\\end{{{kind}}}" if opened[1] else {"iffalse": "\\fi"}.get(kind, "\\endcomment")
            before, rest = line[: opened.start()], line[opened.end() :]
            is_here = closing in rest
            end = at if is_here else self.end(at + 1, closing.lower())
            if is_here or end:
                after = (rest if is_here else self.lines[end]).partition(closing)[2]
                if kind in ("comment", "iffalse"):
                    self.left_out["comment"] += 1
                    self.result += [escape(_plain(before)), *[""] * (end - at - 1)][: end - at]
                    self.lines[end] = before * is_here + after
                    return end
                if before.strip():
                    self._write(before)
                self.result += ["```", *([rest.partition(closing)[0]] if is_here else self.lines[at + 1 : end]), "```"]
                self.lines[end] = after
                return end + (not after.strip())
        self._write(_TEX_COMMENT.sub(r"\1", line))
        return at + 1

    def _write(self, line: str) -> None:
        """Write a line in pieces that have one heading, item, row or environment at most."""
        for piece in _TEX_AFTER.sub(
            r"\1\n", _TEX_BEFORE.sub("\n", _TEX_BLOCK.sub(r"\1. ", _TEX_NAMED.sub(r"\1. ", line)))
        ).split("\n"):
            self._piece(piece)

    def _piece(self, line: str) -> None:
        for kind, name in re.findall(r"\\(begin|end)\{(itemize|enumerate)\}", line):
            if kind == "begin":
                self._lists.append((name, 0))
            elif self._lists:
                self._lists.pop()
        if found := _TEX_HEADING.search(line):
            self.result.append(heading(_LEVELS.get(found[1], 4), _plain(found[2])))
            return
        if formula := _TEX_FORMULA.search(line):
            self._is_formula = formula[1] == "begin"
        kept = _TEX_DROPPED.sub("", _TEX_SPAN.sub(lambda span: span[3] + "&" * (int(span[1]) - 1), line))
        if self._is_row and line.strip() and not kept.strip() and "\\end{" not in line:  # a rule between rows
            return
        was_row, self._is_row = self._is_row, not self._is_formula and _TEX_CELL.search(kept) is not None
        if self._is_row:
            cells = [_plain(cell).strip().replace("|", r"\|") for cell in _TEX_CELL.split(kept)]
            self.result += [f"| {' | '.join(cells)} |", *([] if was_row else [f"|{' --- |' * len(cells)}"])]
        elif item := _TEX_ITEM.match(kept):
            kind, count = self._lists.pop() if self._lists else ("", 0)
            self._lists.append((kind, count + 1))
            bullet = f"{count + 1}." if kind == "enumerate" else "-"
            words = (bullet, _plain(item[1] or ""), escape(_plain(kept[item.end() :])))
            self.result.append("   " * (len(self._lists) - 1) + " ".join(filter(None, words)))
        elif kept.strip() or not was_row:  # else a rule between rows
            self.result.append(escape(_plain(kept).rstrip()))


def _plain(text: str) -> str:
    """A text without commands of style."""

    def accented(found: re.Match[str]) -> str:
        sign, letter = found[1] or found[5], found[2] or found[3] or found[4] or found[6]
        return unicodedata.normalize("NFC", letter + _ACCENTS[sign])

    text = _TEX_ACCENT.sub(accented, text)
    for _ in range(4):  # in one another
        text = _TEX_STYLE.sub(r"\1", text)
    text = _TEX_LETTER.sub(lambda letter: _LETTERS[letter[1]], re.sub(r"\\\\(?:\[[^][]*\])?\s*$", "", text))
    return re.sub(r"\\([%&#_{}$])", r"\1", text).replace("~", " ").translate(_SIGNS)


def read_ipynb(path: Path) -> Conversion:
    """A Jupyter notebook: cells in order, code and the text of its outputs as fences.

    A part begins at a heading, and at the next cell where it is long; ``cell`` is the number of its first one.

    Raises:
        ConversionError: It is no notebook of version 4.
    """
    notebook = json.loads(decode(path.read_bytes()).text)
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ConversionError("it is no Jupyter notebook of version 4. Cure: save it anew, or ignore it.")
    about: dict[str, Any] = notebook.get("metadata") or {}
    language = str((about.get("language_info") or about.get("kernelspec") or {}).get("name") or "python")
    parts: list[tuple[int, list[str]]] = []
    left_out: Counter[str] = Counter()
    for number, cell in enumerate(notebook["cells"], start=1):
        text, pictures = _DATA.subn("", _joined(cell.get("source")).rstrip())
        left_out["picture"] += pictures
        if not text.strip():
            continue
        if not parts or re.match(r"\s*#{1,6}\s", text) or sum(map(len, parts[-1][1])) > _LONG_PART:
            parts.append((number, []))
        blocks, kind = parts[-1][1], cell.get("cell_type")
        if kind != "code":
            blocks.append(escape(text, keep_lists=True) if kind == "raw" else text)
            continue
        outputs = "\n".join(filter(None, (_output(one, left_out) for one in cell.get("outputs") or [])))
        blocks += [formats.fence(text, language), *([formats.fence(outputs)] if outputs.strip() else [])]
    authors = (
        str(author["name"]) for author in about.get("authors") or [] if isinstance(author, dict) and "name" in author
    )
    metadata = {"title": str(about.get("title") or ""), "author": ", ".join(authors)}
    pages = [Part("\n\n".join(texts) + "\n", {"cell": number}) for number, texts in parts]
    return Conversion(pages, metadata, left_out)


def _joined(source: Any) -> str:
    """A text that a notebook holds as one string or as lines."""
    return "".join(map(str, source)) if isinstance(source, list) else str(source or "")


def _output(output: dict[str, Any], left_out: Counter[str]) -> str:
    """The plain text of an output; pictures in it are counted, and the end of what is long."""
    data: dict[str, Any] = output.get("data") or {}
    if any(kind.startswith(("image/", "video/", "audio/")) for kind in data):
        left_out["picture"] += 1
        return ""
    kind = output.get("output_type")
    text = _joined(output.get("text") if kind == "stream" else data.get("text/markdown") or data.get("text/plain"))
    if kind == "error":
        text = f"{output.get('ename')}: {output.get('evalue')}"
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).strip("\n")
    left_out["character of outputs"] += max(0, len(text) - _LONG_OUTPUT)
    return text[:_LONG_OUTPUT]
