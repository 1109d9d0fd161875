"""Dates that messages name, seen from Friday 10 April 2026."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.retrievers.query_dates import find_dates, lexicon_of, load_lexicon
from llama_index_contextual.utils.dates import NamedDate

TODAY = date(2026, 4, 10)

CASES = [
    ("what did we say yesterday?", "2026-04-09"),
    ("the day before yesterday", "2026-04-08"),
    ("what is on today", "2026-04-10"),
    ("¿qué dijo ayer?", "2026-04-09"),
    ("y anteayer", "2026-04-08"),
    ("la cena de anoche", "2026-04-09"),
    ("last Friday", "2026-04-03"),
    ("on Monday", "2026-04-06"),
    ("el viernes pasado", "2026-04-03"),
    ("el lunes", "2026-04-06"),
    ("el miercoles", "2026-04-08"),
    ("el 5 de abril", "2026-04-05"),
    ("el 12 de diciembre", "2025-12-12"),  # the most recent one in the past
    ("el lunes 5 de mayo de 2025", "2025-05-05"),
    ("April 5", "2026-04-05"),
    ("on 5 April 2024", "2024-04-05"),
    ("the 5th of April", "2026-04-05"),
    ("Sunday, 14 August 2022", "2022-08-14"),
    ("on October 13, 2023?", "2023-10-13"),
    ("Feb 29", "2024-02-29"),
    ("what did JC order on the 5th", "2026-04-05"),
    ("on the 25th", "2026-03-25"),
    ("el día 5", "2026-04-05"),
    ("2026-04-05", "2026-04-05"),
    ("notes of 2026/04/05", "2026-04-05"),
    ("3 days ago", "2026-04-07"),
    ("two weeks ago", "2026-03-23/2026-03-29"),
    ("a month ago", "2026-03-01/2026-03-31"),
    ("hace una semana", "2026-03-30/2026-04-05"),
    ("hace 2 años", "2024-01-01/2024-12-31"),
    ("last week", "2026-03-30/2026-04-05"),
    ("this week", "2026-04-06/2026-04-12"),
    ("la semana pasada", "2026-03-30/2026-04-05"),
    ("el mes pasado", "2026-03-01/2026-03-31"),
    ("este año", "2026-01-01/2026-12-31"),
    ("in the last three days", "2026-04-07/2026-04-10"),
    ("en los últimos 2 meses", "2026-02-01/2026-04-10"),
    ("last weekend", "2026-04-04/2026-04-05"),
    ("in June", "2025-06-01/2025-06-30"),
    ("in July 2023", "2023-07-01/2023-07-31"),
    ("en marzo de 2024", "2024-03-01/2024-03-31"),
    ("during 2023", "2023-01-01/2023-12-31"),
    ("in 2026-02", "2026-02-01/2026-02-28"),
    ("昨天我们说了什么", "2026-04-09"),
    ("昨日の会議", "2026-04-09"),
    ("2026年3月9日的决定", "2026-03-09"),
    ("12月31日の会議", "2025-12-31"),
    ("2025年12月に決めたこと", "2025-12-01/2025-12-31"),
    ("上周的决定", "2026-03-30/2026-04-05"),
    ("先月の会議", "2026-03-01/2026-03-31"),
    ("十二月的计划", "2025-12-01/2025-12-31"),
    ("三个月", None),
    ("日本年金", None),
    ("2026-02-31", None),  # the original read it as 3 March
    ("31 April 2025", None),
    ("el 30 de febrero", None),
    ("JC may march in the parade", None),
    ("the yesterdays of old", None),
    ("version 1.2026.04.05", None),
    ("04/05/2026", "2026-04-05"),  # 4 May is in the future
    ("por la mañana", None),
    ("in 5 minutes", None),
    ("", None),
]


def shown(named):
    return str(named.first) if named.first == named.last else f"{named.first}/{named.last}"


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_dates_in_a_message(text, expected):
    assert [shown(named) for named in find_dates(text, TODAY, load_lexicon())] == (
        [expected] if expected else []
    )


def test_dates_are_read_in_order_with_their_positions():
    text = "Was it yesterday or on 5 April?"
    dates = find_dates(text, TODAY, load_lexicon())
    assert [text[named.start : named.end] for named in dates] == ["yesterday", "5 April"]


def test_distance_to_a_range():
    named = NamedDate(date(2026, 4, 1), date(2026, 4, 5), 0, 1)
    assert [named.distance(date(2026, 4, day)) for day in (1, 3, 5, 7)] == [0, 0, 0, 2]
    assert named.distance(date(2026, 3, 30)) == -2


@given(st.text(max_size=120), st.dates(date(1990, 1, 1), date(2150, 1, 1)))
def test_any_text_on_any_day_has_ranges_in_order(text, today):
    for named in find_dates(text, today, load_lexicon()):
        assert named.first <= named.last


@given(
    st.dates(date(2000, 1, 1), date(2100, 1, 1)),
    st.sampled_from(["yesterday", "last friday", "3 days ago", "May 1"]),
)
def test_ambiguous_dates_are_in_the_past(today, text):
    [named] = find_dates(text, today, load_lexicon())
    assert named.last <= today


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("Was geschah am 21.01.2024?", ["2024-01-21"]),
        ("Was haben wir am 3.4.2024 beschlossen?", ["2024-04-03"]),
        ("what happened on 25/01/2024?", ["2024-01-25"]),
        ("what happened on 01/25/2024?", ["2024-01-25"]),
        ("what happened on 03-04-2025?", ["2025-04-03", "2025-03-04"]),
        ("was war am 25.12.25?", ["2025-12-25"]),
        ("Notizen vom 20.12.25 bis 25.12.25", ["2025-12-20", "2025-12-25"]),
        ("riunione del 3.4.25", ["2025-04-03"]),
        ("what changed in version 1.12.25?", []),
        ("upgrade from 1.11.12 to Chroma 1.12.12, section 2.10.12, on 10.10.10.12", []),
        ("sizes 10/12/14, odds 5/10/20, fertilizer 10-10-10, Python 3.11.10", []),
        ("on 12/25/25", ["2025-12-25"]),
        ("op 25-12-25", ["2025-12-25"]),
        ("192.168.10.25 at 12:30:45, 3-2-10", []),
        ("what did we decide on 03/04/2024 in the meeting?", ["2024-04-03", "2024-03-04"]),
        ("¿qué pasó el 03/04/2024 en la reunión con los padres?", ["2024-04-03"]),
        ("Qu'avons-nous décidé le 05/06/2024 pendant la réunion ?", ["2024-06-05"]),
        ("Wat gebeurde er op 21-01-2024 tijdens de vergadering?", ["2024-01-21"]),
        ("Что случилось 21.01.2024?", ["2024-01-21"]),
        ("notes of 2024/1/9", ["2024-01-09"]),
        ("was war am 5. Mär. 2024", ["2024-03-05"]),
        ("что было 5 мар. 2024", ["2024-03-05"]),
        ("what happened on 5 mrt 2024", ["2024-03-05"]),
        ("notes of 2024-1-9", ["2024-01-09"]),
        ("2024/01/21 の会議", ["2024-01-21"]),
        ("the plan of 01/2024", ["2024-01-01/2024-01-31"]),
        ("il bilancio del 04.2024", ["2024-04-01/2024-04-30"]),
        ("31.02.2024 and 13/13/2024", []),
        ("version 1.2.2024.7 of 10.0.2024.1", []),
    ],
)
def test_days_in_digits_are_read_in_all_common_forms(text, days):
    dates = find_dates(text, TODAY, load_lexicon())
    shown = [
        f"{period.first}" if period.first == period.last else f"{period.first}/{period.last}"
        for period in dates
    ]
    assert shown == days


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("what happened 5 to 8 March", "2026-03-05/2026-03-08"),
        ("what happened on 5–8 March 2026", "2026-03-05/2026-03-08"),
        ("between March 5th and 8th", "2026-03-05/2026-03-08"),
        ("between 5 March and 8 March", "2026-03-05/2026-03-08"),
        ("from Thu 5 March to Sun 8 March 2026", "2026-03-05/2026-03-08"),
        ("March 30 to April 2", "2026-03-30/2026-04-02"),
        ("from 28 December to 3 January 2026", "2025-12-28/2026-01-03"),
        ("from December to February 2026", "2025-12-01/2026-02-28"),
        ("January 2025 to March 2026", "2025-01-01/2026-03-31"),
        ("in Q1 to Q2 2025", "2025-01-01/2025-06-30"),
        ("in the first half of 2025", "2025-01-01/2025-06-30"),
        ("im zweiten Halbjahr 2025", "2025-07-01/2025-12-31"),
        ("primer semestre de 2025", "2025-01-01/2025-06-30"),
        ("au premier semestre 2025", "2025-01-01/2025-06-30"),
        ("3 to 5 days ago", "2026-04-05/2026-04-07"),
        ("2026-03-05 to 2026-03-08", "2026-03-05/2026-03-08"),
        ("2026-03-05..2026-03-08", "2026-03-05/2026-03-08"),
        ("was war vom 5. bis zum 8. März", "2026-03-05/2026-03-08"),
        ("5.3.–8.3.2026", "2026-03-05/2026-03-08"),
        ("qué pasó del 5 al 8 de marzo", "2026-03-05/2026-03-08"),
        ("que s'est-il passé du 5 au 8 mars", "2026-03-05/2026-03-08"),
        ("cosa è successo dal 5 all'8 marzo", "2026-03-05/2026-03-08"),
        ("wat gebeurde er van 5 tot 8 maart", "2026-03-05/2026-03-08"),
        ("o que aconteceu de 5 a 8 de março", "2026-03-05/2026-03-08"),
        ("что было с 5 по 8 марта", "2026-03-05/2026-03-08"),  # noqa: RUF001
        ("3月5日から8日まで何があった", "2026-03-05/2026-03-08"),
        ("3月5日至8日发生了什么", "2026-03-05/2026-03-08"),
        ("on 5 March and on 8 March", "2026-03-05 2026-03-08"),
        ("go from Rome to Paris on 5 March", "2026-03-05"),
        ("the road to March 5, 2026", "2026-03-05"),
        ("5 to 8 people", ""),
        ("on 2025-03-04 and 30 others came", "2025-03-04"),
        ("what happened in 2025-03 and 8 weeks later", "2025-03-01/2025-03-31"),
        ("4月9日から3日間", "2026-04-09"),
    ],
)
def test_a_range_includes_all_its_days(text, days):
    assert " ".join(map(shown, find_dates(text, TODAY, lexicon_of(text)))) == days


def test_a_range_spans_the_text_of_both_ends():
    text = "was it 5 to 8 March or not"
    [named] = find_dates(text, TODAY, load_lexicon())
    assert text[named.start : named.end] == "5 to 8 March"


def test_a_month_without_a_year_is_the_current_one_once_it_has_begun():
    for today, year in ((date(2026, 4, 1), 2026), (date(2026, 3, 31), 2025)):
        [named] = find_dates("what happened in April?", today, lexicon_of("in April"))
        assert (named.first, named.last) == (date(year, 4, 1), date(year, 4, 30))


def test_only_the_first_four_dates_of_a_text_are_used():
    text = "2026-01-01, 2026-01-03, 2026-01-05, 2026-01-07 and 2026-01-09"
    named = find_dates(text, date(2026, 4, 1), lexicon_of(text))
    assert [day.first.day for day in named] == [1, 3, 5, 7]
