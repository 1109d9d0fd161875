"""Org, reStructuredText, LaTeX and notebooks, with comments, literal blocks and drawers."""

import json

import pytest

from llama_index_contextual.app.folder.converters.latex import read_tex
from llama_index_contextual.app.folder.converters.notebook import read_ipynb
from llama_index_contextual.app.folder.converters.org import read_org
from llama_index_contextual.app.folder.converters.rst import read_rst
from llama_index_contextual.app.folder.formats import ConversionError

ORG = {
    "comments": ("* Shop\n** Seals\n# TODO * do not edit\nAsk.\n  # indented\n#\n#x is text\n",
        "# Shop\n## Seals\n\nAsk.\n\n\n#x is text\n"),
    "a block of comments": ("* A\n#+begin_comment\n* Old plan\n#+END_COMMENT\nb\n",
    "# A\n\n\n\nb\n"),
    "a language with a hyphen": ("#+begin_src emacs-lisp\n(a)\n#+end_src\n",
    "```emacs-lisp\n(a)\n```\n"),
    "literal blocks": (("#+BEGIN_SRC sh -n\n# a comment\n* no heading\n#+END_SRC\n#+begin_example\n* x\n"  # noqa: E501
        "#+end_example\n"), "```sh\n# a comment\n* no heading\n```\n```\n* x\n```\n"),
    "a block that does not end": ("#+begin_src\n* Heading\n", "\n# Heading\n"),
    "an end that is a part of the block": ("#+begin_example\n,#+end_example\n* x\n#+end_example\n", "```\n,#+end_example\n* x\n```\n"),  # noqa: E501
    "blocks that do not end": ("#+begin_src\n* A\n#+begin_src c\nx\n#+end_src\n:END:\n",
    "\n# A\n```c\nx\n```\n\n"),
    "a quote": ("#+begin_quote\n# comment\n---- x\n#+end_quote\n", "\n\n---- x\n\n"),
    "headings that are comments": ("* A\n** COMMENT Old\n*** older\ntext\n* B\n",
    "# A\n\n\n\n# B\n"),
    "a comment with a priority, and headings that are none": ("* TODO [#A] COMMENT Old\n*\nx\n* COMMENTS\n*\nCOMMENT\n",  # noqa: E501
        "\n\n\n# COMMENTS\n*\nCOMMENT\n"),
    "states, priorities and tags": ("* DONE [#A] Pay :money:now:\n", "# Pay\n"),
    "drawers, and one that does not end": ("* A\n:PROPERTIES:\n:ID: 7\n:end:\nb\n:LOGBOOK:\n* C\n",
        "# A\n\n\n\nb\n:LOGBOOK:\n# C\n"),
    "text that looks like Markdown": ("===\n| a | b |\n|---+---|\n- item\n  1. item\n<script>\n",
        "\\===\n| a | b |\n|---|---|\n- item\n  1. item\n\\<script>\n"),
    "links": ("** See [[http://x.y][the site]]\n", "## See the site\n"),
    "comments of other notations": ("%%\n{% comment %}\nin {/* and `{%`\n", "\\%%\n{\\% comment %}\nin {\\/* and `{%`\n"),  # noqa: E501
    "captions": ("#+CAPTION[T]: # of tides\n[[./a.png]]\n", "\\# of tides\n[[./a.png]]\n"),
    "keywords": ("#+TITLE: Notes\n#+attr_html: x\ntext\n", "\n\ntext\n"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "markdown"), ORG.values(), ids=ORG)
def test_an_org_file_becomes_markdown_line_by_line(tmp_path, text, markdown):
    (tmp_path / "a.org").write_text(text, "utf-8")
    assert read_org(tmp_path / "a.org").parts[0].text == markdown
    assert len(markdown.splitlines()) == len(text.splitlines())


RST = {
    "a literal block behind a text": ("Like this::\n\n   # make\n   python\n\nThen.\n",
        "Like this:\n```\n   # make\n   python\n```\nThen.\n"),
    "a literal block alone": ("So:\n\n::\n\n  # make\n\n  # more\n\nThen.\n", "So:\n\n```\n\n  # make\n\n  # more\n```\nThen.\n"),  # noqa: E501
    "a literal block in an item": ("- one::\n\n     # make\n\n- two\n",
    "- one:\n```\n     # make\n```\n- two\n"),
    "a language with a hyphen": (".. code-block:: shell-session\n\n   # pump\n   on\n\nText.\n",
        "```shell-session\n\n   # pump\n   on\n```\nText.\n"),
    "options and parsed literals": (".. parsed-literal::\n   :x: y\n\n   # *pump*\n\nText.\n",
        "```\n   :x: y\n\n   # *pump*\n```\nText.\n"),
    "the last block": ("::\n\n  # x\n", "```\n\n  # x\n```\n"),
    "comments and targets": (".. _pumps:\n\n.. A comment\n   # in it\n\n..\n   # more\n\nText.\n", "\n\n\n\n\n\n\n\nText.\n"),  # noqa: E501
    "text of directives": (".. note:: Mind.\n\n   # of units\n",
    ".. note:: Mind.\n\n   \\# of units\n"),
    "a line that looks like Markdown": ("# of units: 5\n\n| a line\n\n----\n\nText\n", "\\# of units: 5\n\n\\| a line\n\n\n\nText\n"),  # noqa: E501
    "a grid": (("+---+----+\n| A | B  |\n+===+====+\n| a | b  |\n|   | c  |\n+---+----+\n| d | e  |\n+---+----+\n"),  # noqa: E501
        "| A | B |\n| --- | --- |\n| a | b c |\n| d | e |\n\n\n\n\n"),
    "names over columns of a table": ("== == ===\nIn    Out\n----- ---\nA  B  C\n== == ===\n1  2  3\n== == ===\n",  # noqa: E501
        "| In |  | Out |\n| --- | --- | --- |\n| A | B | C |\n| 1 | 2 | 3 |\n\n\n\n"),
    "a cell over two columns of a grid": ("+---+----+\n| A | B  |\n+===+====+\n| both   |\n+---+----+\n",  # noqa: E501
        "| A | B |\n| --- | --- |\n| both |  |\n\n\n"),
    "headings": ("=====\nTitle\n=====\n\nIn C#\n-----\n", "\n# Title\n\n\n## In C\\#\n\n"),
    "headings that end with two colons": ("Paths::\n=======\n\nstd::\n-----\n\n  text\n", "# Paths::\n\n\n## std::\n\n\n  text\n"),  # noqa: E501
    "links in headings": ("A `link <http://x.y>`_, `other`_ and ``code``\n============================================\n",  # noqa: E501
        "# A link, other and ``code``\n\n"),
    "roles in headings": (":mod:`os` and :ref:`more <x>`\n============================\n",
    "# os and more\n\n"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "markdown"), RST.values(), ids=RST)
def test_restructured_text_becomes_markdown_line_by_line(tmp_path, text, markdown):
    (tmp_path / "a.rst").write_text(text, "utf-8")
    assert read_rst(tmp_path / "a.rst").parts[0].text == markdown
    assert len(markdown.splitlines()) - len(text.splitlines()) in (
        0,
        1,
    )  # a fence at the end is a line more


TEX = {
    "signs": (r"\section{Costs in C\#}" + "\n" + r"\# of units: 5" + "\n" + r"50\% of \$ 3", "## Costs in C\\#\n\\# of units: 5\n50% of $ 3"),  # noqa: E501
    "numbers": (("\\begin{enumerate}\n\\item a\n\\begin{itemize}\n\\item x\n\\end{itemize}\n\\item b\n\\end{enumerate}\n"  # noqa: E501
        "\\begin{enumerate}\n\\item c\n\\end{enumerate}"), "\n1. a\n\n   - x\n\n2. b\n\n\n1. c\n"),
    "comments of several lines": ("a\n\\begin{comment}\n\\section{Old}\n\\end{comment}\n\\iffalse\nb\n\\fi\nc", "a\n\n\n\n\n\n\nc"),  # noqa: E501
    "code": ("\\begin{Verbatim}\n\\section{No}\n% kept\n\\end{Verbatim}",
    "```\n\\section{No}\n% kept\n```"),
    "accents": ("Gr\\\"o\\ss e, caf\\'e, \\'{e}l\\`eve, \\c{c}a, na\\\"{\\i}ve",
    "Größe, café, élève, ça, naïve"),
    "slides": ("\\begin{frame}{Slide}\\begin{block}{Seals}Words.\\end{block}\\end{frame}", "#### Slide\n##### Seals\nWords."),  # noqa: E501
    "headings": (r"\subsection {A \emph{very deep} title}", "### A very deep title"),
    "tables": (("\\begin{tabular}{@{}lp{3cm}|r@{}}\nA & B & C \\\\\n\\midrule\n\\multicolumn{2}{c}{both} & 25 \\\\[2pt]\n"  # noqa: E501
        "\\cmidrule(lr){1-2}\nd & e & f \\\\\n\\end{tabular}"),
        "| A | B | C |\n| --- | --- | --- |\n| both |  | 25 |\n| d | e | f |"),
    "formulas": ("\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}\n\\url{http://x.y/a%20b} tail % no", "a &= b\nc &= d\n\nhttp://x.y/a%20b tail"),  # noqa: E501
    "a percent sign in a line of code": (r"Write \verb|50 % x|.", r"Write \verb|50 % x|."),
    "names": ("\\begin{theorem}[Pump law] Flow.\\end{theorem}\n\\begin{figure}[!htb]\nA\n\\end{figure}", "[Pump law] Flow.\n\n\nA"),  # noqa: E501
    "words over two lines": ("an \\emph{old\ntidal law} of\\index{law!of {tides}} tides\\indexdef{tide}", "an old\ntidal law of tides\\indexdef{tide}"),  # noqa: E501
    "code that is indented": ("  \\begin{verbatim}\na\n\\end{verbatim}\n\\begin{verbatim}\nb\n\\end{verbatim}", "```\na\n```\n```\nb\n```"),  # noqa: E501
    "signs of columns in code": (r"Write \verb+a&b+ and \url{x?a&b}",
    r"Write \verb+a&b+ and x?a&b"),
    "labels of headings": (r"\section{Pumps \label{sec:p}}", "## Pumps"),
    "labels": ("\\begin{description}\n\\item[Pump] moves\n\\end{description}", "\n- Pump moves\n"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "markdown"), TEX.values(), ids=TEX)
def test_latex_becomes_markdown(tmp_path, text, markdown):
    (tmp_path / "a.tex").write_text(
        f"\\begin{{document}}\n{text}\n\\end{{document}}\nnever printed\n", "utf-8"
    )
    assert read_tex(tmp_path / "a.tex").parts[0].text.strip("\n") == markdown.strip("\n")


def test_a_notebook_keeps_the_text_of_its_outputs_but_no_pictures(tmp_path):
    def result(**data):
        kinds = {kind.replace("_", "/"): text for kind, text in data.items()}
        return {
            "output_type": "execute_result",
            "data": kinds,
            "metadata": {},
            "execution_count": 1,
        }

    picture = "iVBORw0KGgo" * 5000
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[31mtide: 4\x1b[0m\n", "ok\r\n"]},
        {
            "output_type": "stream",
            "name": "stderr",
            "text": ["\r 0%| 0/9", "\r50%| 4/9", "\r\x1b[2K100%| 9/9\n"],
        },
        result(text_plain="HBox(children=())", **{"application_vnd.jupyter.widget-view+json": {}}),
        result(
            text_plain="   Berth  Metres\n0  North  120", text_html="<table><tr><td>North</table>"
        ),
        result(text_plain="<Figure size 640x480>", image_png=picture),
        result(text_plain="y" * 5000),
        {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["x"]},
        {"output_type": "display_data", "data": {"text/markdown": "**Result** is 42"}},
        {"output_type": "display_data", "data": {"text/html": "<p>42"}},
    ]
    cells = [
        {
            "cell_type": "markdown",
            "source": f"# Tides\n\n![chart](data:image/png;base64,{picture})\n\nText.",
        },
        {"cell_type": "code", "source": ["tide()\n", "'```'"], "outputs": outputs},
        {"cell_type": "raw", "source": "# raw"},
    ]
    about = {"kernelspec": {"name": "julia-1.10", "language": "julia"}}
    (tmp_path / "a.ipynb").write_text(
        json.dumps({"cells": cells, "metadata": about, "nbformat": 4}), "utf-8"
    )
    converted = read_ipynb(tmp_path / "a.ipynb")
    text = "\n\n".join(part.text for part in converted.parts)
    assert (
        "````julia\ntide()\n'```'\n````\n\n```\ntide: 4\nok\n100%| 9/9\n   Berth  "
        "Metres\n0  North  120\nyyy"
    ) in text
    assert "![chart]()" in text
    assert "\\# raw" in text
    assert "ValueError: no\n**Result** is 42\n```" in text
    assert "iVBOR" not in text
    assert "Figure size" not in text
    assert converted.left_out == {"picture": 3, "output": 1, "output character": 3000}


@pytest.mark.parametrize(
    "text",
    [
        '{"cells": [[1], {"source": "x"}]}',
        '{"cells": [null]}',
        '{"cells": {"a": 1}}',
        '{"cells": 7}',
        '[{"cells": []}]',
        "null",
        '{"cells": [{"source": "x", "outputs": {"a": 1}}]}',
        '{"cells": [{"source": "x", "outputs": [{"data": [1]}]}]}',
        '{"cells": [{"source": "x"}], "metadata": [1]}',
        '{"cells": [{"source": "x"}], "metadata": {"language_info": [1]}}',
    ],
)
def test_a_file_that_only_looks_like_a_notebook_is_refused(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text, "utf-8")
    with pytest.raises(ConversionError, match="it is not a Jupyter notebook of version 4"):
        read_ipynb(tmp_path / "a.ipynb")


def test_nested_lists_do_not_make_quadratic_text(tmp_path):
    (tmp_path / "a.tex").write_text(
        "\\begin{document}" + "\\begin{itemize}\\item a " * 3000, "utf-8"
    )
    assert len(read_tex(tmp_path / "a.tex").text) < 300_000


@pytest.mark.parametrize("sign", ["\f", "\v", "\x85", "\u2028"])
@pytest.mark.parametrize(
    ("suffix", "read", "title"), [(".rst", read_rst, "Pumps\n====="), (".org", read_org, "* Pumps")]
)
def test_characters_that_end_no_line_in_editors_move_no_line(tmp_path, suffix, read, title, sign):
    path = tmp_path / f"a{suffix}"
    path.write_text(f"First.\n{sign}\n{title}\n\nThe pump{sign}runs.\n", "utf-8")
    source = path.read_text("utf-8").split("\n")
    lines = read(path).text.split("\n")
    assert lines.index("The pump runs.") == source.index(f"The pump{sign}runs.")
    assert lines.index("# Pumps") == 2
