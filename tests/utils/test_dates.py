from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.utils.dates import (
    DATE_LANGUAGES,
    Period,
    date_from_heading,
    date_from_path,
    date_in_words,
    epoch_seconds,
    extract_dates,
    is_only_a_date,
    mentions_date_in_passing,
    month_name,
    numbered_words,
    parse_date,
    parse_period,
    period_from_path,
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("memory/2026-04-09.md", date(2026, 4, 9)),
        ("2026-04-09-standup.md", date(2026, 4, 9)),
        ("a/b/c/2026/04/09-standup.md", date(2026, 4, 9)),
        ("2026/04-09.md", date(2026, 4, 9)),
        ("log/2026_04_09", date(2026, 4, 9)),
        ("log/2026_4_9", date(2026, 4, 9)),
        ("posts/2026-4-9-standup.md", date(2026, 4, 9)),
        ("2026/4/9/standup.md", date(2026, 4, 9)),
        ("log/2026.04.09.md", date(2026, 4, 9)),
        ("2026/2026-04-09.md", date(2026, 4, 9)),
        ("notes\\2026\\04\\09.md", date(2026, 4, 9)),
        ("standup-2026-04-09T10-30.md", date(2026, 4, 9)),
        ("2025-01-01/2026-04-09.md", date(2026, 4, 9)),  # the deepest
        ("2026-03-01-follow-up-of-2026-02-20.md", date(2026, 3, 1)),  # the first there
        ("2026/04/09-of-2026-02-20.md", date(2026, 4, 9)),
        ("log/21.01.2024 Standup.md", date(2024, 1, 21)),
        ("2026-04-09/2026-02-31.md", date(2026, 4, 9)),  # the deepest possible one
        ("20240229-meeting.md", date(2024, 2, 29)),
        ("IMG_20240229_101500.md", date(2024, 2, 29)),
        ("202402291015 Zettel.md", date(2024, 2, 29)),
        ("log/February 29, 2024.md", date(2024, 2, 29)),
        ("log/2024年2月29日.md", date(2024, 2, 29)),
        ("daily.journal.2024.02.29.md", date(2024, 2, 29)),  # as Dendron names it
        ("2024/02-February/29.md", date(2024, 2, 29)),
        ("report-1234567890.md", None),
        ("20240231.md", None),
        ("memory/2026-02-31.md", None),  # the source read it as 3 March
        ("memory/2026-13-01.md", None),
        ("MEMORY.md", None),
        ("2026/04/standup.md", None),
        ("v1.2026.04.09.md", None),  # a version
        ("release-2026.4.9.md", None),
        ("12026-04-09.md", None),
        ("2026-04-091.md", None),
        ("", None),
    ],
)
def test_a_date_in_a_path(path, expected):
    assert date_from_path(path) == expected


@pytest.mark.parametrize(
    ("path", "period"),
    [
        ("monthly/2025-10.md", "2025-10-01/2025-10-31"),
        ("monthly/2025_02.md", "2025-02-01/2025-02-28"),
        ("2025/10.md", "2025-10-01/2025-10-31"),
        ("2025-12 December.md", "2025-12-01/2025-12-31"),
        ("journal\\October 2025.md", "2025-10-01/2025-10-31"),
        ("2025 Oktober.md", "2025-10-01/2025-10-31"),
        ("weekly/2025-W41.md", "2025-10-06/2025-10-12"),
        ("2025/W41.md", "2025-10-06/2025-10-12"),
        ("2025-w01", "2024-12-30/2025-01-05"),
        ("Week 41, 2025.md", "2025-10-06/2025-10-12"),
        ("quarterly/2025-Q3.md", "2025-07-01/2025-09-30"),
        ("2025Q4 plan.md", "2025-10-01/2025-12-31"),
        ("2025-H2.md", "2025-07-01/2025-12-31"),
        ("yearly/2025.md", "2025-01-01/2025-12-31"),
        ("2025年10月.md", "2025-10-01/2025-10-31"),
        ("2025年第41周.md", "2025-10-06/2025-10-12"),
        ("2025년 4분기.md", "2025-10-01/2025-12-31"),
        ("2025年10月5日.md", "2025-10-05"),
        ("2025/2025-10-03.md", "2025-10-03"),
        ("10-05-2025.md", None),  # the day or the month may come first
        ("2025-W53.md", None),  # 2025 has 52 weeks
        ("books/1984.md", None),
        ("2025/10/standup.md", None),
        ("v2025.10.md", None),
        ("report-2025-100.md", None),
        ("2025-13.md", None),
        ("2025-1010.md", None),
        ("2025 set of tools.md", None),
        ("MEMORY.md", None),
    ],
)
def test_the_period_of_a_note(path, period):
    parsed = period_from_path(path)
    assert (parsed and parsed.isoformat()) == period
    assert parse_period(period) == parsed


@pytest.mark.parametrize(
    ("title", "is_in_passing"),
    [
        ("Plan for 2026-06-30", True),
        ("The plan for [2026-06-30]", True),
        ("for 2026-06-30", False),
        ("Plan, 2026-06-30", False),
        ("Standup 2026-06-30", False),
        ("2026-06-30: plan for June", False),
        ("Plan for June", False),
    ],
)
def test_a_title_mentions_a_date_in_passing(title, is_in_passing):
    assert mentions_date_in_passing(title) is is_in_passing


def test_periods_overlap_where_they_share_a_day():
    april = Period(date(2026, 4, 1), date(2026, 4, 30))
    assert april.overlaps(Period(date(2026, 4, 30), date(2026, 5, 2)))
    assert april.overlaps(Period(date(2026, 3, 30), date(2026, 4, 1)))
    assert not april.overlaps(Period(date(2026, 5, 1), date(2026, 5, 2)))


def test_dates_are_removed_from_a_word():
    assert extract_dates("report-2026-04-09.pdf") == ([date(2026, 4, 9)], "report--.pdf")
    assert extract_dates("2026-04-09-report") == ([date(2026, 4, 9)], "report")


def test_a_period_in_words():
    assert date_in_words("2025-10-01/2025-10-31") == "1 October 2025 to 31 October 2025"
    assert date_in_words("2025-10-01/soon") == ""
    assert parse_period("2025-10-31/2025-10-01") is None


@pytest.mark.parametrize(
    ("title", "is_day"),
    [
        ("Sunday", True),
        ("2026-01-31", True),
        ("Sonntag, 1. März 2026", True),
        ("Sunday roast", False),
    ],
)
def test_a_heading_that_names_only_a_day(title, is_day):
    assert is_only_a_date(title) is is_day


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("2026-01-31", date(2026, 1, 31)),
        ("Standup, 2026-01-31", date(2026, 1, 31)),
        ("2026-02-30", None),
        ("Thursday, February 29th, 2024", date(2024, 2, 29)),
        ("29. Februar 2024", date(2024, 2, 29)),
        ("1er mars 2024", date(2024, 3, 1)),
        ("29 de febrero de 2024", date(2024, 2, 29)),
        ("29 февраля 2024", date(2024, 2, 29)),
        ("２０２４年２月２９日", date(2024, 2, 29)),
        ("2024년 2월 29일", date(2024, 2, 29)),
        ("٢٩/٠٢/٢٠٢٤", date(2024, 2, 29)),
        ("02/29/2024", date(2024, 2, 29)),
        ("29-02-2024", date(2024, 2, 29)),
        ("2024-2-9", date(2024, 2, 9)),
        ("5–8 March 2024", date(2024, 3, 5)),
        ("5.–8. März 2024", date(2024, 3, 5)),
        ("5.-8.3.2024", date(2024, 3, 5)),
        ("March 5-8, 2024", date(2024, 3, 5)),
        ("5. Dez. 2024", date(2024, 12, 5)),
        ("5 févr. 2024", date(2024, 2, 5)),
        ("5 giu 2024", date(2024, 6, 5)),
        ("5 mrt 2024", date(2024, 3, 5)),
        ("5 мар. 2024", date(2024, 3, 5)),
        ("5 dic 2024", date(2024, 12, 5)),
        ("5th of March 2024", date(2024, 3, 5)),
        ("1 de enero del 2024", date(2024, 1, 1)),
        ("1° marzo 2024", date(2024, 3, 1)),
        ("December 12th,2024", date(2024, 12, 12)),
        ("2024/3/5", date(2024, 3, 5)),
        ("03-13-2024", date(2024, 3, 13)),
        ("2024\u201103\u201105", date(2024, 3, 5)),  # with hyphens that break no line
        ("Support 5 or 2024", None),
        ("2 set 2024 flags", date(2024, 9, 2)),
        ("5 to 8 March 2024", date(2024, 3, 5)),
        ("March 5 to 8, 2024", date(2024, 3, 5)),
        ("5.–8.3.2024: Messe", date(2024, 3, 5)),
        ("Vom 5. bis 8. März 2024", date(2024, 3, 5)),
        ("Del 5 al 8 de marzo de 2024", date(2024, 3, 5)),
        ("Trip to Rome, March 5-8, 2024", date(2024, 3, 5)),
        ("Messe am 5./6. März 2024", date(2024, 3, 5)),
        ("Chapters 3 to 5, 8 March 2024", date(2024, 3, 8)),
        ("5 & 6 March 2024", date(2024, 3, 5)),
        ("28 December – 3 January 2024", date(2023, 12, 28)),
        ("The road to March 5, 2024", date(2024, 3, 5)),
        ("05.Mar.2024", date(2024, 3, 5)),
        ("01/02/2024", None),
        ("01/02/2024 Besprechung mit dem Kunden und der Firma", date(2024, 2, 1)),
        ("Notes of May 2024", None),
        ("20240229 Standup", date(2024, 2, 29)),
        ("20240229", date(2024, 2, 29)),
        ("20240231", None),
        ("Ticket 20190312", None),
        ("20231215-77 Order", None),
        ("Order 20231215-77", None),
        ("Tel 20241231", None),
        ("v20231005", None),
        ("id 202310051234", None),
        ("In 2024, may 5 people join", None),
        ("2023 set 5 records", None),
        ("2024 out 3 of 5", None),
        ("Python 2024. 10. 3", None),
        ("2024-Mar-15", date(2024, 3, 15)),
        ("2024. 2. 29.", date(2024, 2, 29)),
        ("2024 Feb 29", date(2024, 2, 29)),
        ("2024 May 5", date(2024, 5, 5)),
        ("In 2023 mars 5 rovers", None),
        ("2024, February 29", date(2024, 2, 29)),
        ("2024-Feb-29", date(2024, 2, 29)),
        ("29 lutego 2024", date(2024, 2, 29)),
        ("29. února 2024", date(2024, 2, 29)),
        ("29 Şubat 2024", date(2024, 2, 29)),
        ("29 Φεβρουαρίου 2024", date(2024, 2, 29)),
        ("٢٩ فبراير ٢٠٢٤", date(2024, 2, 29)),
        ("2024. február 29.", date(2024, 2, 29)),
        ("Plans", None),
        ("2026-04-09 - 08:30 Standup", date(2026, 4, 9)),
        ("2026-04-09 - 3 decisions", date(2026, 4, 9)),
        ("Log 2026-03-05 to 2026-02-01", date(2026, 3, 5)),
    ],
)
def test_a_date_in_a_heading(title, expected):
    assert date_from_heading(title) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (date(2026, 4, 9), date(2026, 4, 9)),
        ("2026-04-09", date(2026, 4, 9)),
        (" 2026/04/09 ", date(2026, 4, 9)),
        ("2026-04-09T10:30:00", datetime(2026, 4, 9, 10, 30)),  # noqa: DTZ001
        ("2026-04-09T10:30:00Z", datetime(2026, 4, 9, 10, 30, tzinfo=timezone.utc)),
        (
            "2026-04-09T10:30:00-05:00",
            datetime(2026, 4, 9, 10, 30, tzinfo=timezone(timedelta(hours=-5))),
        ),
        ("2026:04:09 10:30:00", date(2026, 4, 9)),
        ("2026-02-31", None),
        ("soon", None),
        (None, None),
        (20260409, None),
        (
            "2026-04-09 10:30:00 +0200",
            datetime(2026, 4, 9, 10, 30, tzinfo=timezone(timedelta(hours=2))),
        ),
        # Python 3.10 reads none of these.
        ("2026-04-09T10:30+02", datetime(2026, 4, 9, 10, 30, tzinfo=timezone(timedelta(hours=2)))),
        ("20260409T103000Z", datetime(2026, 4, 9, 10, 30, tzinfo=timezone.utc)),
        ("2026-04-09T1030", datetime(2026, 4, 9, 10, 30)),  # noqa: DTZ001
        (
            "2026-04-09t10:30:00.1234567z",
            datetime(2026, 4, 9, 10, 30, 0, 123_456, tzinfo=timezone.utc),
        ),
        ("2026-04-09T10:30:00,5", datetime(2026, 4, 9, 10, 30, 0, 500_000)),  # noqa: DTZ001
        ("2026-W15-4", date(2026, 4, 9)),
        ("2026W15", date(2026, 4, 6)),
        ("2026-W54", None),
        ("2026-04-09T25:00", date(2026, 4, 9)),
        ("2026-04-09T10:00+99:00", date(2026, 4, 9)),
        (1_633_027_200, datetime(2021, 9, 30, 18, 40, tzinfo=timezone.utc)),
        (1_633_027_200_000, datetime(2021, 9, 30, 18, 40, tzinfo=timezone.utc)),  # Dendron
        ("1633027200000", datetime(2021, 9, 30, 18, 40, tzinfo=timezone.utc)),
        ("20260409103000000", date(2026, 4, 9)),  # TiddlyWiki
        ("[[Apr 9th, 2026]]", date(2026, 4, 9)),  # Logseq
        ("2026-04-01/2026-04-30", date(2026, 4, 1)),
    ],
)
def test_a_date_in_metadata(value, expected):
    assert parse_date(value) == expected


@pytest.mark.parametrize(
    ("value", "first", "last"),
    [
        ("2026-W15", date(2026, 4, 6), date(2026, 4, 12)),
        ("2026-W15-4", date(2026, 4, 9), date(2026, 4, 9)),
        ("2026-04-09", date(2026, 4, 9), date(2026, 4, 9)),
        ("2026-04-01/2026-04-30", date(2026, 4, 1), date(2026, 4, 30)),
        ("2026-04", date(2026, 4, 1), date(2026, 4, 30)),
        ("April 2026", date(2026, 4, 1), date(2026, 4, 30)),
        ("2026-Q2", date(2026, 4, 1), date(2026, 6, 30)),
    ],
)
def test_a_period_in_metadata(value, first, last):
    assert parse_period(value) == (first, last)


def test_a_week_does_not_end_beyond_the_calendar():
    assert parse_period("9999-W52") is None


@given(st.dates(date(1900, 1, 1), date(2199, 12, 31)))
def test_every_day_written_as_iso_is_read_back(day):
    assert date_from_path(f"memory/{day.isoformat()}.md") == day
    assert parse_date(day.isoformat()) == day


def test_epoch_seconds_are_midnight_utc():
    assert epoch_seconds(date(1970, 1, 2)) == 86_400


def test_every_language_has_names_for_twelve_months_and_seven_days():
    for language in DATE_LANGUAGES:
        assert set(numbered_words("months", language).values()) == set(range(1, 13))
        assert set(numbered_words("weekdays", language).values()) == set(range(7))
    assert (
        numbered_words("months", "en")["sept"] == numbered_words("months", "es")["setiembre"] == 9
    )
    assert (
        numbered_words("weekdays", "en")["thurs"] == numbered_words("weekdays", "es")["jueves"] == 3
    )
    assert month_name(4) == "april"
    assert month_name(4, "es") == "abril"
    assert numbered_words("months", "zh") == numbered_words("weekdays", "zh") == {}
