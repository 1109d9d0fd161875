"""The list of differences, the tests that show them and the page that is made of it agree."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

from differences import DIFFERENCES

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def test_each_difference_is_shown_by_a_test_and_each_test_names_a_difference_that_is_listed():
    listed = Counter(row.id for rows in DIFFERENCES.values() for row in rows)
    assert max(listed.values()) == 1, "an id stands for one row"
    tests = [path.read_text("utf-8") for path in FOLDER.glob("test_*.py")]
    shown = {name for text in tests for name in re.findall(r'differs="([\w-]+)"', text)}
    assert shown == set(listed)


def test_the_page_is_made_from_the_list():
    made = runpy.run_path(str(ROOT / "scripts" / "compatibility_page.py"))["page"]()
    assert (ROOT / "docs" / "reference" / "compatibility.md").read_text("utf-8") == made, (
        "run scripts/compatibility_page.py"
    )
