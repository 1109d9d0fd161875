"""Formulas of a document become MathML, and what cannot be read is shown as it is written."""

from __future__ import annotations

import re

import pytest
from growth import assert_linear
from llama_index.core.schema import TextNode

from llama_index_contextual.app.serve.formulas import formula_html
from llama_index_contextual.app.serve.html import node_html

FORMULAS = r"""
E = mc^2
\frac{a}{b}
\sum_{i=1}^{n} x_i
\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}
\begin{pmatrix} a & b \\ c & d \end{pmatrix}
\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}
\begin{vmatrix} a & b \\ c & d \end{vmatrix} = ad - bc
f(x) = \begin{cases} x & \text{if } x > 0 \\ -x & \text{otherwise} \end{cases}
\lim_{x \to 0} \frac{\sin x}{x} = 1
\mathbb{R}^n
\nabla \times \mathbf{E} = -\frac{\partial \mathbf{B}}{\partial t}
\hat{y} = \operatorname{argmax}_y P(y \mid x)
\left( \frac{a}{b} \right)^2
\sqrt[3]{x + 1}
\overline{AB} \perp \vec{CD}
\binom{n}{k} = \frac{n!}{k!(n - k)!}
\begin{aligned} a &= b + c \\ &= d \end{aligned}
\begin{align} a &= b \\ c &= d \end{align}
\underbrace{a + b}_{\text{sum}}
\forall \epsilon > 0 \, \exists \delta > 0
A \subseteq B \iff \forall x (x \in A \Rightarrow x \in B)
\mathcal{O}(n \log n)
\lVert x \rVert_2
\det(A - \lambda I) = 0
P(A|B) = \frac{P(B|A) P(A)}{P(B)}
\prod_{k=1}^n k
a \equiv b \pmod{n}
\text{recall}@k = \frac{|R \cap T_k|}{|R|}
\tilde{\theta} \sim \mathcal{N}(\mu, \sigma^2)
\begin{array}{c|c} a & b \\ \hline c & d \end{array}
30^\circ \approx 0.52
x' + x'' \le \langle x, y \rangle
""".strip().splitlines()


def shown(text, terms=()):
    return str(node_html(TextNode(text=text, metadata={"path": "a.md"}), str, terms))


@pytest.mark.parametrize("formula", FORMULAS)
def test_common_formulas_become_mathml(formula):
    assert formula_html(formula, is_block=True).startswith('<math display="block">')
    assert shown(f"Here ${formula}$.").startswith("<p>Here <math>")


def test_prices_code_and_escapes_are_no_formulas():
    text = "It costs $5 and $6, or \\$7 to \\$8. `$a$` is code."
    assert "<math" not in shown(text)
    assert shown("A price $\\$5$ in a formula.").count("<math") == 1


@pytest.mark.parametrize(
    "text",
    [
        "$$\na\n= b\n- c\n> d\n$$\n\nText.",
        "Text:\n$$\na\n\n+ b\n$$\nText.",
        "- item\n  $$\n  a\n  + b\n  $$\n",
        "> $$\n> a\n> + b\n> $$\n",
    ],
)
def test_a_formula_on_lines_of_its_own_is_one_formula(text):
    html = shown(text)
    assert html.count('<math display="block">') == 1
    assert "$$" not in html
    assert html.count("&gt;") == text.count("> d"), "no mark of a quotation is in the formula"


def test_an_open_formula_does_not_swallow_the_text_after_its_list():
    assert "<math" not in shown("- $$\n  a\n\nText\n\n$$\n")


@pytest.mark.parametrize(
    "formula",
    [
        r"\unknown{a}",
        r"\ce{H2O}",
        r"\sum_{\substack{a \\ b}} x",
        r"\smash{x}",
        r"\frac{a",
        r"}{",
        r"a & b",
        r"\href{javascript:x}{y}",
        r"\input{/etc/passwd}",
    ],
)
def test_what_cannot_be_read_is_shown_as_it_is_written(formula):
    assert '<code class="math">' in shown(f"It is ${formula}$ here.")


@pytest.mark.parametrize(
    "formula",
    [
        r"\text{<script>alert(1)</script>}",
        r"\operatorname{<img src=x onerror=alert(1)>}",
        r"\mathrm{<b onclick=x>}",
        r"\color{red;position:fixed}x",
        r"\textcolor{red}{x} \cfrac{1}{2} \hspace{99999999999pt}",
        r"\begin{align} a \label{question} \end{align} \eqref{question}",
        r"\def\a{\a\a}\a",
        "\ud800",
    ],
)
def test_a_formula_is_data(formula):
    html = shown(f"It is ${formula}$ here.")
    assert not re.findall(r"<(?:script|img|b|a)\b", html)
    assert not re.findall(r"\b(?:style|href|src|on\w+)=\"", html)
    assert 'id="question"' not in html


def test_columns_keep_their_alignment_without_a_style():
    html = formula_html(r"\begin{aligned} a &= b \end{aligned}", is_block=True)
    assert re.findall(r'<mtd class="(\w+)"', html) == ["right", "left"]


def test_words_are_marked_beside_formulas_and_not_in_them():
    html = shown("The sin of $\\sin x$.", {"sin"})
    assert "The <mark>sin</mark> of <math>" in html
    assert html.count("<mark>") == 1


@pytest.mark.parametrize("piece", ["$", "$$", "$a ", "$$a", "\n$$\na", "$\\", "$a$ ", "$$\\frac"])
def test_formulas_are_read_in_proportion_to_the_text(piece):
    assert_linear(shown, lambda count: piece * count, 1000)


def test_a_formula_is_read_in_proportion_to_its_length():
    for piece in ("{", "\\sqrt{", "x_1+", "\\left(", "\\begin{matrix}", "^", "\\\\"):
        assert_linear(
            lambda text: formula_html(text, is_block=True), lambda count, p=piece: p * count, 300
        )
