"""The figures of the README, of its chart and of the results pages are those of ``recall.json``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
README = (ROOT / "README.md").read_text("utf-8")
SECTION = README.partition("\n## Benchmarks\n")[2].partition("\n## ")[0]
RESULTS = (BENCHMARKS / "RESULTS.md").read_text("utf-8")
RETRIEVAL = (BENCHMARKS / "results" / "retrieval.md").read_text("utf-8")
RECALL = json.loads((BENCHMARKS / "results" / "recall.json").read_text("utf-8"))
DEPTHS = (1, 5, 10)
NUMBER_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"]


@pytest.fixture
def chart(monkeypatch):
    """Return the module that draws the chart."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import chart

    return chart


def is_significant(name, depth):
    _, low, high = RECALL[name][f"recall@{depth}"]["difference"]
    return low > 0 or high < 0


def recorded(name, depth, *systems):
    """Return the mean of each system; of the difference also the ends of its interval."""
    values = []
    for system in systems:
        mean, low, high = RECALL[name][f"recall@{depth}"][system]
        values += [mean, low, high] if system == "difference" else [mean]
    return values


def numbers_in(text):
    return [float(number) for number in re.findall(r"[+-]?\d+\.\d", text)]


def shown_as(figures):
    """Return figures to compare with numbers of one decimal; those recorded have two."""
    return pytest.approx(figures, abs=0.0501)


def rows_below(page, heading):
    """Return the cells of the rows of the first table below a heading, by their first cell."""
    table = page.partition(f"\n{heading}\n")[2].partition("\n|")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0].strip(" °"): row[1:] for row in rows[2:]}


def test_the_charts_are_drawn_from_the_recorded_figures(chart):
    for theme in chart.THEMES:
        drawn = (ROOT / "docs" / "images" / f"recall-{theme.name}.svg").read_text("utf-8")
        assert drawn == chart.chart(RECALL, theme), "run benchmarks/chart.py"


def rows_of_results(chart):
    """Return the rows of the table in RESULTS.md by the names of the sets."""
    names = {label.casefold(): name for name, label in (chart.UNSEEN | chart.TRAINED).items()}
    rows = rows_below(RESULTS, "## Recall@5 without a language model")
    return {names[label.casefold()]: cells for label, cells in rows.items()}


def test_the_results_show_the_recorded_recall(chart):
    rows = rows_of_results(chart)
    assert rows.keys() == RECALL.keys()
    for name, (questions, *cells) in rows.items():
        expected = recorded(name, 5, "stock", "ours", "difference")
        assert int(questions) == RECALL[name]["questions"]
        assert numbers_in(" ".join(cells)) == shown_as(expected), name
        assert ("**" in cells[-1]) == is_significant(name, 5), name


def test_the_summary_of_retrieval_shows_the_recorded_recall():
    rows = rows_below(RETRIEVAL, "## Summary")
    assert rows.keys() == RECALL.keys()
    for name, (questions, ours, *differences) in rows.items():
        assert int(questions) == RECALL[name]["questions"]
        expected = [recorded(name, depth, "ours")[0] for depth in DEPTHS]
        assert numbers_in(ours) == shown_as(expected), name
        for depth, cell in zip(DEPTHS, differences, strict=False):
            assert numbers_in(cell) == shown_as(recorded(name, depth, "difference")), name
            assert ("**" in cell) == is_significant(name, depth), name


def test_both_pages_round_a_difference_alike(chart):
    summary = rows_below(RETRIEVAL, "## Summary")
    for name, cells in rows_of_results(chart).items():
        assert cells[-1] == summary[name][3], name


def test_the_readme_names_the_sets_with_and_without_a_significant_difference(chart):
    prose = " ".join(SECTION.split())
    gains = re.search(r"finds significantly more .*? on (\w+) sets: (.*?)\. ", prose)
    draws = re.search(r"On ([^.]*?) there is no significant difference", prose)
    labels = {name: label.casefold() for name, label in (chart.UNSEEN | chart.TRAINED).items()}
    significant = {labels[name] for name in RECALL if is_significant(name, 5)}
    assert {*re.split(r", | and ", gains[2].casefold())} == significant
    assert gains[1] == NUMBER_WORDS[len(significant)]
    not_significant = {labels[name] for name in RECALL} - significant
    assert {*re.split(r", | and ", draws[1].casefold())} == not_significant


def test_every_number_in_the_readme_is_in_the_results_with_what_it_counts():
    number = r"(?<![\w.])[+-]?\d[\d.,]*(?: \w+| ?%)"
    amounts = re.findall(number, " ".join(re.sub(r"<.*?>", "", SECTION).split()))
    pages = [RESULTS, *(page.read_text("utf-8") for page in (BENCHMARKS / "results").glob("*.md"))]
    known = {amount for page in pages for amount in re.findall(number, page)}
    assert amounts
    assert not [amount for amount in amounts if amount not in known]
