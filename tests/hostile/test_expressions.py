"""Every regular expression of the package takes linear time, whatever the text.

The tests collect the expressions of all modules, of their tables and of calls of ``re``. For each
expression they build texts of up to a megabyte from its parts, and the time of the worst text must
grow linearly. An expression whose input is bounded gets texts up to that bound.
"""

import ast
import importlib
import inspect
import pkgutil
import random
import re
import sys
from functools import partial

import pytest
from growth import LIMIT, assert_linear, seconds_of
from pathspec import GitIgnoreSpec

import llama_index_contextual as package
from llama_index_contextual.app.folder.patterns import pattern_of, spec_of
from llama_index_contextual.context.answers import refusal, split_answers
from llama_index_contextual.retrievers.query_dates import FURTHER_LANGUAGES, LANGUAGES, load_lexicon

# The parts of an expression; Python 3.10 has them elsewhere.
kinds, parser = map(
    importlib.import_module,
    ("re._constants", "re._parser")
    if sys.version_info >= (3, 11)
    else ("sre_constants", "sre_parse"),
)
REPEATS = {kinds.MAX_REPEAT, kinds.MIN_REPEAT, getattr(kinds, "POSSESSIVE_REPEAT", None)}
ATOMIC = {getattr(kinds, "ATOMIC_GROUP", None)}  # Python 3.10 has neither
LONGEST = 1_000_000
SHORT = 2_000
TRIES = 100
MANY = 10  # repetitions that may take long
MOST_EXAMPLES = 12
MOST_REPEATED = 60
CALLS = {"sub", "subn", "search", "match", "fullmatch", "split", "findall", "finditer"}
EXAMPLES = {
    kinds.CATEGORY_SPACE: " \n\t",
    kinds.CATEGORY_NOT_SPACE: "a*",
    kinds.CATEGORY_DIGIT: "1",
    kinds.CATEGORY_NOT_DIGIT: "a",
    kinds.CATEGORY_WORD: "a_1",
    kinds.CATEGORY_NOT_WORD: " -*",
}
# Expressions whose input, or what they read from each place, is bounded: (number of characters,
# reason).
BOUNDED = {
    "app.serve.formulas._INLINE": (100_000, "2,000 characters from each dollar sign"),
    "app.folder.tables._CONDITION": (255, "a format of a number"),
    "app.folder.tables._FORM": (255, "the same"),
    "app.folder.tables._WORD": (255, "the same"),
    "app.folder.converters.pdf._BROKEN": (100, "the end of a block"),
    "app.folder.pdf_tables._VALUE": (60, "a cell is cut before"),
    "context.source_code._ASSIGNED": (300, "a line that may define a name"),
    "context.source_code._SIGNED": (300, "the same"),
    "context.source_code._FUNCTION": (600, "a function up to its body"),
}
# Expressions that are only matched at one place, not searched from every letter.
ANCHORED = {
    "app.serve.answering._AFTER",
    "app.serve.answering._OPEN",
    "retrievers.query._CONDITION",
    "app.serve.html._SCHEME",
    "app.serve.html._WITHIN_LIST",
    "app.settings.names._NAME",
    "node_parser.sections._LEAD",
    "app.folder.converters.latex._ITEM",
    "app.folder.converters.org._BLOCK",
    "app.folder.converters.org._HEADING",
    "app.folder.converters.rst._HEADING_LINE",
    "app.folder.converters.rst._TABLE_RULE",
    "app.folder.converters.rst._BLOCK",
    "app.folder.converters.org._KEYWORD",
    "app.folder.converters.org._TABLE_RULE",
    "app.folder.converters.org._COMMENT",
    "app.folder.converters.notebook._HEADING",
    "app.folder.markdown._BLOCK",
    "app.folder.markdown._LIST",
    "app.folder.archive._DETAILS",
    "app.folder.archive.integer",
    "app.folder.html_to_markdown._ITEM_NUMBER",
    "app.folder.html_to_markdown._NUMBERED",
    "node_parser.front_matter._FRONT_MATTER",
    "node_parser.front_matter._KEY",
    "node_parser.blocks._CONTAINER",
    "utils.text._HEX",
    "utils.text._WORD_OR_NUMBER",
    "retrievers.chunk_info._IMPL_FOR",
    "retrievers.words._GROUPED",
    "retrievers.words._OTHERWISE_GROUPED",
    "retrievers.words._PRICE",
    "tools.places._NUMBERED",
    "tools.places._QUOTED",
}


def expressions():
    """Return every expression and its owner, keyed by the owner's name and the first characters."""
    by_pattern = {}
    for name, value in walked():
        for expression in inside(value):
            by_pattern.setdefault(expression.pattern, (name, expression))
    return {
        f"{name} {pattern[:30]}": (name, value) for pattern, (name, value) in by_pattern.items()
    }


def inside(value):
    """Yield the expressions that a value is or contains."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for member in list(value)[:200]:
            yield from inside(member)
    elif hasattr(value, "fullmatch") and isinstance(getattr(value, "pattern", None), str):
        yield value


def walked():
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        name = info.name.removeprefix(f"{package.__name__}.")
        for key, value in list(vars(module).items()):
            yield f"{name}.{key}", value
        for function, pattern in calls_of(module):
            yield f"{name}.{function}", pattern
    for ways in load_lexicon((*LANGUAGES, *FURTHER_LANGUAGES)).date_patterns:
        yield "retrievers.query_dates.any_date", ways.any_date
        for pattern in ways.patterns:
            yield "retrievers.query_dates.date_patterns", pattern.expression


def calls_of(module):
    """Yield each expression in a call such as ``re.sub(r"...", ...)``, with the function's name."""
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            called = node.func if isinstance(node, ast.Call) else None
            if (
                isinstance(called, ast.Attribute)
                and ast.unparse(called.value) == "re"
                and called.attr in CALLS
            ):
                given = node.args[0]
                if isinstance(given, ast.Constant):
                    yield function.name, re.compile(given.value)
                else:
                    assert function.name in MADE, f"{function.name}: {ast.unparse(given)}"


# Functions that build an expression from parts that are escaped or not foreign. The first has a
# test below.
MADE = {
    "_invented": "digits of a context",
    "among": "an escaped name",
    "_parts_of_word": "escaped terms",
    "replace": "an escaped passage of a note",
    "edit": "the same",
}


def pieces(tree, words, letters):  # noqa: C901  one branch for each kind
    """Gather what an expression names: runs of letters, and examples of its classes."""
    run = ""
    for kind, value in [*tree, (None, None)]:
        if kind is kinds.LITERAL:
            run += chr(value)
            continue
        if run:
            words.add(run)
            letters.update(run)
            run = ""
        if kind is kinds.IN:
            for inner, argument in value:
                if inner is kinds.LITERAL:
                    letters.add(chr(argument))
                elif inner is kinds.RANGE:
                    letters.update(map(chr, argument))
                elif inner is kinds.CATEGORY:
                    letters.update(EXAMPLES.get(argument, ""))
        elif kind is kinds.BRANCH:
            for branch in value[1]:
                pieces(branch, words, letters)
        elif kind is kinds.NOT_LITERAL:
            letters.add(chr(value))
        elif isinstance(value, tuple) and isinstance(value[-1], parser.SubPattern):
            pieces(value[-1], words, letters)


def examples(tree):
    """Return texts that an expression matches, or nearly, for its first alternatives."""
    texts = [""]
    for kind, value in tree:
        if kind is kinds.LITERAL:
            parts = [chr(value)]
        elif kind is kinds.NOT_LITERAL or kind is kinds.ANY:
            parts = ["a"]
        elif kind is kinds.IN:
            parts = sorted(letters_of([(kind, value)]))[:1] or ["a"]
        elif kind is kinds.BRANCH:
            parts = [text for branch in value[1] for text in examples(branch)]
        elif kind in REPEATS:
            parts = [text * max(1, value[0]) for text in examples(value[-1])]
        elif kind in {kinds.SUBPATTERN, *ATOMIC}:
            parts = examples(value[-1] if kind is kinds.SUBPATTERN else value)
        else:  # an assertion, or what an earlier group matched
            parts = [""]
        texts = [text + part for text in texts for part in parts][:MOST_EXAMPLES]
    return texts


def letters_of(tree):
    letters = set()
    pieces(tree, set(), letters)
    return letters


def repeated_texts(tree):
    """Yield what is repeated in an expression: "na " and "no " in ``(?:na |no )+``."""
    for kind, value in tree:
        if kind in REPEATS and value[1] >= MANY:
            yield from examples(value[-1])
        branches = value[1] if kind is kinds.BRANCH else [value]
        for branch in branches:
            inner = branch[-1] if isinstance(branch, tuple) else branch
            if isinstance(inner, parser.SubPattern):
                yield from repeated_texts(inner)


def attacks(expression):
    """Yield beginnings, repeated units and endings that may be slow for an expression."""
    words, letters, repeated = set(), set("a1 \n.*-"), []
    if isinstance(expression, re.Pattern):
        tree = parser.parse(expression.pattern, expression.flags & ~re.DEBUG)
        pieces(tree, words, letters)
        repeated = sorted(set(filter(None, repeated_texts(tree))))[:MOST_REPEATED]
    else:  # from the package regex: letters that consist of several characters
        letters.update("\u0301\u200d\ufe0f\U0001f468\U0001f1e6\u1100\u0600")
    units = [*sorted(letters)[:40], *sorted(words)[:20]]
    dice = random.Random(ascii(expression.pattern))  # noqa: S311  reproducible
    yield from (("", unit, "!") for unit in [*units, *repeated])
    for _ in range(TRIES):
        unit = "".join(dice.choices(units, k=dice.choice((2, 2, 3, 4))))
        start = "".join(dice.choices(units, k=dice.choice((0, 0, 1, 2))))
        yield start, unit, dice.choice(("!", "", "\n", "\x00"))


def text_of(attack, size):
    start, unit, end = attack
    return start + (unit * (size // len(unit) + 1))[: max(0, size - len(start) - len(end))] + end


def uses(expression, anchored):
    yield expression.match
    yield expression.fullmatch
    if not anchored:
        yield lambda text: [None for _ in expression.finditer(text)]


def test_every_exception_names_an_existing_expression():
    assert {*BOUNDED, *ANCHORED} <= {place for place, _ in FOUND.values()}


@pytest.mark.parametrize(
    ("pattern", "unit"),
    [
        (r"(?<!\w)(?:(?:na|no|desde|última|último) {1,2})+(?:sexta|sábado)", "desde "),
        (r"a|(?:b(?P<tag><b>)\s)+x", "b<b>\t"),
        (r"(?:(?:[p-z]+-|\d+/)(?:y|n) ?)*!x", "p-n "),
    ],
)
def test_repeated_parts_of_an_expression_are_among_the_attacks(pattern, unit):
    assert ("", unit, "!") in attacks(re.compile(pattern))


@pytest.mark.long
@pytest.mark.parametrize("name", FOUND := expressions())
def test_the_worst_text_takes_linear_time(name):
    place, expression = FOUND[name]
    longest, _ = BOUNDED.get(place, (LONGEST, ""))
    for use in uses(expression, place in ANCHORED):
        short = min(SHORT, longest)
        tried = [
            (seconds_of(use, text_of(attack, short)), attack) for attack in attacks(expression)
        ]
        for _, attack in sorted(tried, reverse=True)[:2]:
            assert_linear(use, partial(text_of, attack), longest)


ANSWERS = [
    "**a ", "**a*", "<context ", "<think>", "</think>", "'", "\u201c\u201d", "1. a\n", "* ",
    "chunk\n", "```\n", "# ",
    "chunk 1 ", ". 2", "1 : a 2 ", "`a", "a_", "a.a.", "1,000", "9", "(a", "\n", "{", "[",
]  # fmt: skip


@pytest.mark.parametrize("unit", ANSWERS)
@pytest.mark.parametrize("count", [1, 5])
def test_reading_an_answer_takes_linear_time(unit, count):
    def use(text):
        for context in split_answers(text, count).values():
            refusal(context, text[:4000], text[:50_000], text[:1000])

    assert_linear(use, lambda size: unit * (size // len(unit)), LONGEST)


FOLDERS = ["a/" * 2000 + "c", "a" * 250, ("a" * 250 + "/") * 15 + "c", "ab/" * 1300 + "c"]
IGNORED = [
    "**/a/**/a/**/a/**/b", "a/**/a/**/a/**/a/**/b", "/**/*a*/**/*a*/**/b", "a*/**/a*/**/a*/**/b",
    "*a*a*a*a*a*b",
    "*/*/*/*/*/b", "**/a*/**/*a*b", "a/**/a*/**/b", "[a-z]*[a-z]*[a-z]*b", "**a**a**a**b",
    "**/**/**/**/b",
]  # fmt: skip


@pytest.mark.parametrize("pattern", IGNORED)
def test_an_ignore_pattern_takes_linear_time(pattern):
    spec = pattern_of(pattern)  # None: a pattern with more than two double stars is skipped
    assert spec is None or max(seconds_of(spec.check_file, path) for path in FOLDERS) < LIMIT


def test_a_linear_ignore_pattern_keeps_its_meaning():
    dice, compared = random.Random(4), 0  # noqa: S311  reproducible
    for _ in range(500):
        parts = dice.choices(
            ["**", "a", "b", "*", "a*", "*b*a", "?", "ab", "[ab]"], k=dice.randint(1, 6)
        )
        line = dice.choice(["", "/", "!"]) + "/".join(parts) + dice.choice(["", "/"])
        try:
            stock, ours = GitIgnoreSpec.from_lines([line]), spec_of([line])
        except ValueError:  # no pattern, or too many double stars
            continue
        for _ in range(20):
            names = [
                "".join(dice.choices("ab", k=dice.randint(1, 3))) for _ in range(dice.randint(1, 8))
            ]
            path = "/".join(names) + dice.choice(["", "/"])
            assert ours.check_file(path).include == stock.check_file(path).include, (line, path)
            compared += 1
    assert compared > 5000
