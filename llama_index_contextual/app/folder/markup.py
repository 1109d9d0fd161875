"""Other markup than Markdown: reStructuredText, Org, LaTeX and notebooks.

Each line of the first three stays a line where it can, so that a citation by lines holds for the file.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.app.folder import decode, formats
from llama_index_contextual.app.folder.formats import (
    Conversion,
    ConversionError,
    Part,
    escape,
    heading,
)

_LINE: Final = r"(?P<{0}>[=\-`:.'\"~^_*+#])(?P={0}){{2,}}"  # above or below a heading
_RST_LINE: Final = re.compile(rf"\s*{_LINE.format('sign')}\s*$")
_RST_RULE: Final = re.compile(r"(?:=+(?:[ ]+=+)+|\+(?:[-=]+\+)+)[ ]*$", re.MULTILINE)  # of a table
# A table; a heading; a directive of code, a comment, a target or a text with two colons, and what is indented below.
_RST: Final = re.compile(
    rf"""(?P<table>{_RST_RULE.pattern}\n(?:.*\S.*\n)*)
    |(?P<over>{_LINE.format("upper")})[ ]*\n(?P<middle>.*\S.*)\n(?P=over)[ ]*\n
    |(?!{_LINE.format("no")}[ ]*\n|\.\.[ \n])(?P<title>\S.*)\n(?P<under>{_LINE.format("lower")})[ ]*\n
    |(?P<indent>[ ]*)(?![ ])(?:
        \.\.[ ](?:(?:code-block|code|sourcecode|math)::[ ]*(?P<language>[\w+-]*)|parsed-literal::).*\n
        |(?P<comment>\.\.(?:[ ]+(?![\w:.+-]+::|\[|\|[^|\n]+\||_).*|[ ]+_[^:\n]*:)?[ ]*\n)
        |(?P<text>(?!\.\.[ ]).*:):[ ]*\n
    )(?P<below>(?:(?:[ ]*\n)*(?P=indent)[ ]+[^ \n].*\n)*)(?:[ ]*\n)?""",
    re.VERBOSE | re.MULTILINE,
)
_RST_ROLE: Final = re.compile(
    r"(?<![\w:.+`-])(?::[\w:.+-]{1,60}:)?`([^`<]{1,300}?)(?:\s{0,3}<[^`>]{0,300}>)?`_{0,2}(?!`)"
)
_ORG_HEADING: Final = re.compile(
    r"(\*+)\s+(?:(?:TODO|DONE)\s+)?(?:\[#\w\]\s+)?(.*?)(?:\s+:[\w@:]+:)?\s*$"
)
_ORG_LINK: Final = re.compile(r"\[\[(?:[^][]*\]\[)?([^][]*)\]\]")
# A block, a drawer, and a heading that is a comment with what stands below it.
_ORG: Final = re.compile(
    r"""[ \t]*\#\+(?i:begin_(?P<kind>src|example|export|comment)\b)[ \t]*(?P<language>[\w+-]*).*\n
        (?P<code>(?:(?![ \t]*\#\+(?i:begin_(?P=kind)\b)).*\n)*?)[ \t]*\#\+(?i:end_(?P=kind)).*\n
    |(?:[ \t]*:.*:[ \t]*\n(?:(?![ \t]*(?:\*|(?i::end:))).*\n){0,1000})?[ \t]*(?i::end:)[ \t]*\n
    |(?P<stars>\*+)[ \t]+(?:(?:TODO|DONE)[ \t]+)?(?:\[\#\w\][ \t]+)?COMMENT(?:[ \t].*)?\n
        (?:(?!\*+[ \t]).*\n|(?P=stars)\*.*\n)*""",
    re.VERBOSE,
)
_ORG_KEYWORD: Final = re.compile(
    r"\s*#\+(title|author|date|caption)(?:\[.*?\])?:\s*(.*)$", re.IGNORECASE
)
_LEVELS: Final = {
    "part": 1,
    "chapter": 1,
    "section": 2,
    "subsection": 3,
    "subsubsection": 4,
    "paragraph": 5,
}
_BRACES: Final = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_OPTIONS: Final = r"[ \t]{0,9}(?:<[^<>]{0,200}>)?(?:\[[^][]{0,200}\]){0,3}[ \t]{0,9}"
# Code, comments, and what holds a percent sign that begins none.
_TEX_HIDDEN: Final = re.compile(
    r"(\\(?:url|href|path)\{[^{}]*\}|\\verb\*?([^\w\s*]).{0,200}?\2)"
    r"|\\begin\{(comment|[BLv]?[vV]erbatim\*?|alltt|lstlisting|minted)\}([\s\S]*?)(?:\\end\{\3\}|\Z)"
    r"|\\iffalse\b[\s\S]*?(?:\\fi\b|\Z)|(?<!\\)%.*"
)
_CODE: Final = "\ue000"  # where code stands, until the text is written
_TEX_HEADING: Final = re.compile(
    rf"\\(?:({'|'.join(_LEVELS)})\*?|frametitle|begin\{{(?:frame|\w*block)\}}){_OPTIONS}{_BRACES}"
)
# Where a line is divided: before what begins a thing of its own, and after a heading or a row.
_TEX_BEFORE: Final = re.compile(
    rf"(?<=\S)[ \t]*(?=\\(?:item\b|begin\{{|end\{{|(?:sub)*section\*?\{{|chapter\*?\{{|frametitle\{{)|{_CODE})"
)
_TEX_AFTER: Final = re.compile(rf"({_TEX_HEADING.pattern}|{_CODE}|\\\\)[ \t]*(?=[^\s\[])")
_TEX_STYLE: Final = re.compile(
    rf"\\(?:textbf|textit|emph|texttt|underline|textsc|mbox|url|text){_BRACES}"
)
_TEX_DROPPED: Final = re.compile(
    r"\\(?:label|index|vspace|hspace|usepackage|documentclass|bibliographystyle|pagestyle|includegraphics|title|author"
    rf"|date)(?![a-zA-Z])\*?(?:\[[^][]{{0,200}}\])?(?:{_BRACES})?|\\(?:maketitle|centering|hline|noindent|newpage|clearpage|toprule"
    r"|midrule|bottomrule|tableofcontents|addlinespace|endhead|endfirsthead|endfoot|endlastfoot)\b"
    r"|\\(?:cmidrule|cline)(?:\([^()]*\))?\{[^{}]*\}"
    rf"|\\begin\{{tabular[x*]\}}{_BRACES}{_BRACES}"
    rf"|\\(?:begin|end)\{{\w+\*?\}}(?:\[(?:[!htbpHc\d]{{1,6}}|[^][=]{{0,200}}=[^][]{{0,200}})\])?(?:{_BRACES})?"
)
_TEX_FORMULA: Final = re.compile(
    r"\\(begin|end)\{(?:align|flalign|alignat|eqnarray|gather|multline|equation)\*?\}"
)
_TEX_SPAN: Final = re.compile(rf"\\multicolumn\{{(\d{{1,2}})\}}{_BRACES}{_BRACES}")
_TEX_ACCENT: Final = re.compile(
    r"(?<!\\)\\([\"'`^~=.]|[cHvukr](?=\s{0,9}\{))\s{0,9}(\{)?(?:\\(?=[ij](?![a-zA-Z])))?([a-zA-Z])(?(2)\})"
)
_ACCENTS: Final = dict(
    zip(
        "\"'`^~=.cHvukr",
        "\u0308\u0301\u0300\u0302\u0303\u0304\u0307\u0327\u030b\u030c\u0306\u0328\u030a",
        strict=True,
    )
)
_TEX_LETTER: Final = re.compile(
    r"(?<!\\)\\(ss|ae|AE|oe|OE|aa|AA|o|O|l|L|i)(?![a-zA-Z])(?:\{\}|[ \t]+)?"
)
_LETTERS: Final = dict(zip("ss ae AE oe OE aa AA o O l L i".split(), "ßæÆœŒåÅøØłŁi", strict=True))  # noqa: SIM905
_TEX_ITEM: Final = re.compile(r"\s*\\item\b\s*(?:\[([^\]]{0,200})\])?\s*")
_TEX_CELL: Final = re.compile(r"(?<!\\)&")
_TEX_TITLE: Final = re.compile(rf"\\(title|author|date){_BRACES}")
_DEEPEST: Final = 20  # lists in one another that are indented
_LONG_PART: Final = 1500  # characters of a notebook after which a part ends at the next cell
_LONG_OUTPUT: Final = 2000  # characters of an output that are kept
_NO_TEXT: Final = ("image/", "video/", "audio/", "application/vnd.jupyter.widget")
_CONTROL: Final = re.compile(
    r"\x1b\[[0-9;?]{0,20}[A-Za-z]"
)  # colours, and moves of a terminal's cursor
_OVERWRITTEN: Final = re.compile(
    r"^.*\r(?=[^\r\n])|\r+$", re.MULTILINE
)  # states of a progress bar but the last
_DATA: Final = re.compile(r"data:[\w/+.-]{1,60};base64,[A-Za-z0-9+/=]*")


def _converted(
    text: str,
    blocks: re.Pattern[str],
    block: Callable[[re.Match[str]], list[str]],
    line: Callable[[str], str],
) -> list[Part]:
    """A text whose blocks one function writes, where it returns lines for them, and its other lines another."""
    text, written, at = "\n".join([*text.splitlines(), ""]), list[str](), 0
    while at < len(text):
        if (found := blocks.match(text, at)) and (lines := block(found)):
            written += lines
            at = found.end()
        else:
            end = text.index("\n", at)
            written.append(line(text[at:end]))
            at = end + 1
    return [Part("\n".join(written) + "\n")]


def read_rst(path: Path) -> Conversion:
    """ReStructuredText with Markdown's headings, fences and tables."""
    styles: list[str] = []  # of headings, from the highest level

    def block(found: re.Match[str]) -> list[str]:
        if found["table"]:
            return _rst_table(found["table"].splitlines())
        if found["comment"]:
            return [""] * found[0].count("\n")
        if found["below"] or found["language"] is not None:
            # A directive's line becomes the begin of a fence, or the empty one below a text; that behind it the end.
            text = (
                [_rst_line(found["indent"] + found["text"])]
                if (found["text"] or ":") != ":"
                else []
            )
            return [
                *text,
                f"```{found['language'] or ''}",
                *found["below"].splitlines()[len(text) :],
                "```",
            ]
        title = found["title"] or found["middle"] or ""
        if not title or (found["under"] and len(found["under"]) < len(title.rstrip()) - 1):
            return []
        style = found["lower"] or found["upper"] * 2
        if style not in styles:
            styles.append(style)
        written = heading(styles.index(style) + 1, _RST_ROLE.sub(r"\1", title))
        return ["", written, ""] if found["over"] else [written, ""]

    text = decode(path.read_bytes()).text.expandtabs(8)
    return Conversion(_converted(text, _RST, block, _rst_line))


def _rst_line(line: str) -> str:
    return "" if _RST_LINE.match(line) else escape(line, keep_lists=True)


def _rst_table(lines: list[str]) -> list[str]:
    """A table of lines, whose columns begin and end where its first rule shows them."""
    is_grid = lines[0].startswith("+")
    starts = [match.start() for match in re.finditer(r"\+|=+", lines[0])]
    spans = [
        slice(start + is_grid, end) for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
    rows: list[list[str]] = []
    goes_on = False
    for line in lines:
        cells, at = [""] * (len(spans) - is_grid), 0
        for number, span in enumerate(spans[: len(cells)]):
            begin = span.start - (is_grid and line[span.start - 1 : span.start] not in ("|", "+"))
            at = number if begin == span.start else at  # else a cell goes on over several columns
            cells[at] += line[begin : span.stop]
        cells = [cell.strip() for cell in cells]
        if _RST_RULE.match(line) or not line.strip(" -"):
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
    metadata, left_out = dict[str, str](), Counter[str]()

    def block(found: re.Match[str]) -> list[str]:
        kind = (found["kind"] or "").lower()
        is_comment = kind == "comment" or bool(found["stars"])
        left_out["comment"] += is_comment
        if is_comment or not kind:
            return [""] * found[0].count("\n")
        return [
            f"```{found['language'] if kind == 'src' else ''}",
            *found["code"].splitlines(),
            "```",
        ]

    parts = _converted(
        decode(path.read_bytes()).text, _ORG, block, lambda line: _org_line(line, metadata)
    )
    return Conversion(parts, metadata, left_out)


def _org_line(line: str, metadata: dict[str, str]) -> str:
    """A line outside of blocks; title, author and date go to the metadata."""
    keyword = _ORG_KEYWORD.match(line)
    if keyword and keyword[1].lower() != "caption":
        name, value = keyword[1].lower(), keyword[2].strip()
        metadata["created" if name == "date" else name] = (
            value.strip("<>[]") if name == "date" else value
        )
    elif keyword:
        return escape(keyword[2])
    if found := _ORG_HEADING.match(line):
        return heading(len(found[1]), _ORG_LINK.sub(r"\1", found[2]))
    if line.strip().startswith("|"):
        return line.replace("+", "|") if re.match(r"\s*\|[-+]+\|?\s*$", line) else line
    return "" if re.match(r"\s*#(?:\s|\+|$)", line) else escape(line, keep_lists=True)


def read_tex(path: Path) -> Conversion:
    """LaTeX with Markdown's headings, lists, tables and fences; formulas stay as they are."""
    text = decode(path.read_bytes()).text.replace("\r\n", "\n").replace(_CODE, "")
    preamble, begin, body = text.partition("\\begin{document}")
    body, end, rest = (body if begin else text).rpartition("\\end{document}")
    found = (
        (key, " ".join(_plain(_unstyled(value)).split())) for key, value in _TEX_TITLE.findall(text)
    )
    metadata = {{"date": "created"}.get(key, key): value for key, value in found}
    codes, left_out = list[str](), Counter(comment=int(bool(end and rest.strip())))

    def hide(match: re.Match[str]) -> str:
        if match[1]:
            return match[1].replace("&", r"\&")
        if match[3] and match[3] != "comment":
            codes.append(match[4])
            return _CODE
        left_out["comment"] += not match[0].startswith("%")
        return "\n" * match[0].count("\n")

    body = _TEX_HIDDEN.sub(hide, body if end else rest)
    pieces = _TEX_AFTER.sub(r"\1\n", _TEX_BEFORE.sub("\n", _unstyled(body))).splitlines()
    result = [""] * (preamble.count("\n") if begin else 0)
    for line in _tex_lines(pieces):
        result += (
            ["```", *codes.pop(0).split("\n")[1:-1], "```"] if line.strip() == _CODE else [line]
        )
    return Conversion([Part("\n".join(result) + "\n")], metadata, left_out)


def _tex_lines(pieces: list[str]) -> Iterator[str]:
    """Lines that have one heading, item, row or environment at most, as Markdown."""
    lists: list[tuple[str, int]] = []
    is_row = is_formula = False
    for line in pieces:
        if formula := _TEX_FORMULA.search(line):
            is_formula = formula[1] == "begin"
        kept = _TEX_DROPPED.sub(
            "", _TEX_SPAN.sub(lambda span: span[3] + "&" * (int(span[1]) - 1), line)
        )
        bullet = _bullet(line, lists)
        if (
            is_row and line.strip() and not kept.strip() and "\\end{" not in line
        ):  # a rule between rows
            continue
        was_row, is_row = is_row, not is_formula and _TEX_CELL.search(kept) is not None
        if found := _TEX_HEADING.search(line):
            yield heading(
                _LEVELS.get(found[1], 4 + ("block" in found[0])),
                _plain(_TEX_DROPPED.sub("", found[2])),
            )
        elif is_row:
            cells = [_plain(cell).strip().replace("|", r"\|") for cell in _TEX_CELL.split(kept)]
            yield f"| {' | '.join(cells)} |" + f"\n|{' --- |' * len(cells)}" * (not was_row)
        elif item := _TEX_ITEM.match(kept):
            yield " ".join(
                filter(None, (bullet, _plain(item[1] or ""), escape(_plain(kept[item.end() :]))))
            )
        elif kept.strip() or not was_row:  # else a rule between rows
            yield escape(_plain(kept).rstrip())


def _bullet(line: str, lists: list[tuple[str, int]]) -> str:
    """The sign or number of an item on a line; ``lists`` are those that are open, and how many items they have."""
    for kind, name in re.findall(r"\\(begin|end|item)\b(?:\{(itemize|enumerate)\})?", line):
        if kind == "begin" and name:
            lists.append((name, 0))
        elif kind == "end" and name and lists:
            lists.pop()
        elif kind == "item":
            last, count = lists.pop() if lists else ("", 0)
            lists.append((last, count + 1))
    last, count = lists[-1] if lists else ("", 0)
    return "   " * min(len(lists) - 1, _DEEPEST) + (f"{count}." if last == "enumerate" else "-")


def _unstyled(text: str) -> str:
    """A text without commands of style, which may hold several lines, and with its accents."""
    text = _TEX_ACCENT.sub(lambda at: unicodedata.normalize("NFC", at[3] + _ACCENTS[at[1]]), text)
    return _TEX_STYLE.sub(r"\1", _TEX_STYLE.sub(r"\1", text))  # one in another


def _plain(text: str) -> str:
    """A text without letters and signs that are written as commands."""
    text = _TEX_LETTER.sub(
        lambda letter: _LETTERS[letter[1]], re.sub(r"\\\\(?:\[[^][]*\])?\s*$", "", text)
    )
    return re.sub(r"\\([%&#_{}$])", r"\1", text).replace("~", " ")


def read_ipynb(path: Path) -> Conversion:
    """A Jupyter notebook: cells in order, code and the text of its outputs as fences.

    A part begins at a heading, and at the next cell where it is long; ``cell`` is the number of its first one.

    Raises:
        ConversionError: It is no notebook of version 4.
    """
    notebook = json.loads(decode(path.read_bytes()).text)
    try:
        return _of_notebook(notebook, notebook["cells"])
    except (
        AttributeError,
        LookupError,
        TypeError,
    ) as error:  # lists in the place of objects, and others
        raise ConversionError(
            "it is no Jupyter notebook of version 4. Cure: save it anew, or ignore it."
        ) from error


def _of_notebook(notebook: Any, cells: list[Any]) -> Conversion:
    about: dict[str, Any] = notebook.get("metadata") or {}
    info, kernel = about.get("language_info") or {}, about.get("kernelspec") or {}
    language = str(info.get("name") or kernel.get("language") or "python")
    parts, left_out = list[tuple[int, list[str]]](), Counter[str]()
    for number, cell in enumerate(cells, start=1):
        text, pictures = _DATA.subn("", _joined(cell.get("source")).rstrip())
        left_out["picture"] += pictures
        if not text.strip():
            continue
        if not parts or re.match(r"\s*#{1,6}\s", text) or sum(map(len, parts[-1][1])) > _LONG_PART:
            parts.append((number, []))
        outputs = "\n".join(
            filter(None, (_output(one, left_out) for one in cell.get("outputs") or []))
        )
        kind = cell.get("cell_type")
        text = formats.fence(text, language) if kind == "code" else text
        parts[-1][1].append(escape(text, keep_lists=True) if kind == "raw" else text)
        parts[-1][1].extend([formats.fence(outputs)] if outputs.strip() else [])
    pages = [Part("\n\n".join(texts) + "\n", {"cell": number}) for number, texts in parts]
    return Conversion(pages, {"title": str(about.get("title") or "")}, +left_out)


def _joined(source: Any) -> str:
    """A text that a notebook holds as one string or as lines."""
    return "".join(map(str, source)) if isinstance(source, list) else str(source or "")


def _output(output: dict[str, Any], left_out: Counter[str]) -> str:
    """The plain text of an output; pictures in it are counted, and the end of what is long."""
    data: dict[str, Any] = output.get("data") or {}
    if any(kind.startswith(_NO_TEXT) for kind in data):
        left_out["picture"] += 1
        return ""
    kind = output.get("output_type")
    text = _joined(
        output.get("text")
        if kind == "stream"
        else data.get("text/markdown") or data.get("text/plain")
    )
    if kind == "error":
        text = f"{output.get('ename')}: {output.get('evalue')}"
    left_out["output"] += bool(data and not text)
    text = _OVERWRITTEN.sub("", _CONTROL.sub("", text)).strip("\n\r")
    left_out["output character"] += max(0, len(text) - _LONG_OUTPUT)
    return text[:_LONG_OUTPUT]
