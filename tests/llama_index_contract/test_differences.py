"""The list of differences, its cases and the page that is made of it agree."""

from __future__ import annotations

import runpy
from collections import Counter
from importlib import import_module
from pathlib import Path

from differences import DIFFERENCES

ROOM = Path(__file__).parent
ROOT = ROOM.parents[1]
FILES = sorted(path.stem for path in ROOM.glob("test_*.py") if path != Path(__file__))


def cases():
    return {file: import_module(file).CASES for file in FILES}


def test_each_difference_is_shown_by_a_case_and_each_case_names_a_difference_that_is_listed():
    listed = Counter(row.id for rows in DIFFERENCES.values() for row in rows)
    assert max(listed.values()) == 1, "an id stands for one row"
    assert {case.differs for table in cases().values() for case in table if case.differs} == set(
        listed
    )


def test_cases_of_a_file_have_names_of_their_own():
    for file, table in cases().items():
        assert max(Counter(map(str, table)).values()) == 1, file


def test_the_page_is_made_from_the_list():
    made = runpy.run_path(str(ROOT / "scripts" / "compatibility_page.py"))["page"]()
    assert (ROOT / "docs" / "compatibility.md").read_text("utf-8") == made, (
        "run scripts/compatibility_page.py"
    )
