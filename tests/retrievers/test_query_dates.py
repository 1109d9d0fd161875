"""The dates that a question names, and how close a day is to them."""

from __future__ import annotations

from datetime import date

import pytest

from llama_index_contextual.retrievers.query_dates import closeness, find_dates, lexicon_of


def periods(text, today):
    named = find_dates(text, date.fromisoformat(today), lexicon_of(text))
    return [period.period.isoformat() for period in named]


@pytest.mark.parametrize(
    ("text", "today", "found"),
    [
        ("the plan of 03/04/2026", "2026-05-01", ["2026-04-03", "2026-03-04"]),
        ("the plan of 03/04/2026", "2026-03-20", ["2026-03-04"]),
        ("the plan of 03/04/2026", "2026-03-04", ["2026-03-04"]),
        ("the plan of 03/04/2026", "2026-01-01", ["2026-04-03", "2026-03-04"]),
        ("the storm of 29 February", "2026-03-03", ["2024-02-29"]),
        ("what happened in March?", "2026-03-03", ["2026-03-01/2026-03-31"]),
        ("what happened in April?", "2026-03-03", ["2025-04-01/2025-04-30"]),
        ("what happened on 30 February?", "2026-03-03", []),
    ],
)
def test_a_date_is_the_most_recent_one_that_it_can_mean(text, today, found):
    assert sorted(periods(text, today)) == sorted(found)


def test_a_question_has_at_most_four_dates():
    days = [f"2026-01-0{day}" for day in range(1, 7)]
    assert periods(f"notes of {', '.join(days)}", "2026-03-03") == days[:4]


@pytest.mark.parametrize(
    ("day", "value"),
    [
        ("2026-02-22", 0.0),
        ("2026-02-23", 1.0),
        ("2026-02-25", 1.0),
        ("2026-03-01", 1.0),
        ("2026-03-05", 0.5),
        ("2026-03-08", 0.125),
        ("2026-03-09", 0.0),
    ],
)
def test_the_days_of_a_week_and_less_and_less_the_seven_after_it_are_close(day, value):
    last_week = find_dates("last week", date(2026, 3, 3), lexicon_of("last week"))
    assert closeness(date.fromisoformat(day), last_week) == value
