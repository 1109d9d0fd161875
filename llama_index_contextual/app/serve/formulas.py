"""Formulas in Markdown: ``$…$`` within a line, and ``$$…$$`` within a line or on lines of its own.

They become MathML, which browsers display without a script. The source of an invalid formula is
shown as code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from llama_index_contextual.utils.errors import needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_BLOCK = re.compile(r"\$\$((?:\\.|[^$\\]){1,2000})\$\$[ \t]*(?=\n|\Z)", re.DOTALL)
# As in Pandoc: no white space inside the dollar signs, and no digit after them. So "$5 and $6" is
# not a formula. Neither is text that contains code.
_INLINE = re.compile(
    r"\$\$((?:\\.|[^$\\]){1,2000})\$\$|\$(?=\S)((?:\\.|[^$\\`\n]){1,500})(?<=\S)\$(?!\d)", re.DOTALL
)
_LINK = re.compile(r"</?a\b[^<>]*>")
_ALIGNMENT = re.compile(r'style="text-align: (left|right)[^"]*"')
_STYLE = re.compile(r' style="[^"]*"')


def read_formulas(markdown: MarkdownIt) -> None:
    """Add formulas to a Markdown parser."""
    markdown.block.ruler.before(
        "fence", "formula", _read_block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    markdown.inline.ruler.after("backticks", "formula", _read_inline)
    markdown.add_render_rule("formula", _render)


def formula_html(formula: str, is_block: bool) -> str:
    """Return a LaTeX formula as MathML, or as code if it is not valid.

    The page forbids inline styles, so columns get the class ``left`` or ``right``. Links between
    formulas are removed, because they would replace the query in the address of the page.
    """
    mathml = _mathml(formula, is_block)
    if not mathml:
        return f'<code class="math">{escape(formula)}</code>'
    aligned = _ALIGNMENT.sub(r'class="\1"', _LINK.sub("", mathml))
    return _STYLE.sub("", aligned)


def _mathml(formula: str, is_block: bool) -> str:
    """Return a formula as MathML; "" if it is not valid."""
    with needs("math_core", "app"):
        from math_core import LatexError, LatexToMathML
    # The prefix keeps the ids of labels apart from those of the page.
    converter = LatexToMathML(fancy_error=False, id_prefix="formula-")
    try:
        return str(converter.convert_with_local_state(formula, displaystyle=is_block))
    except (LatexError, UnicodeEncodeError):
        return ""


def _read_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read a formula on lines of its own."""
    if state.is_code_block(start_line):
        return False
    start = state.bMarks[start_line] + state.tShift[start_line]
    match = _BLOCK.match(state.src, start)
    if match is None:
        return False
    next_line = start_line + match[0].count("\n") + 1
    if next_line > end_line or not _is_within_item(state, range(start_line, next_line)):
        return False
    if not silent:
        token = state.push("formula", "math", 0)
        # Remove the markers of lists and quotations.
        lines = state.getLines(start_line, next_line, state.blkIndent, keepLastLF=False)
        token.content = lines.strip().removeprefix("$$").removesuffix("$$").strip()
        token.block = True
        token.map = [start_line, next_line]
    state.line = next_line
    return True


def _is_within_item(state: StateBlock, lines: range) -> bool:
    """Return whether lines are indented like the current list item, or empty."""
    return all(state.isEmpty(line) or state.sCount[line] >= state.blkIndent for line in lines)


def _read_inline(state: StateInline, silent: bool) -> bool:
    """Read a formula within a line."""
    match = _INLINE.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("formula", "math", 0).content = (match[1] or match[2]).strip()
    state.pos = match.end()
    return True


def _render(_: RendererHTML, tokens: Sequence[Token], index: int, __: Any, ___: Any) -> str:
    """Return a formula as HTML, in a paragraph if it is on lines of its own."""
    formula = tokens[index]
    html = formula_html(formula.content, formula.block)
    return f"<p>{html}</p>\n" if formula.block else html
