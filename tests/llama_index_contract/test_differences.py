"""The list of differences agrees with the tests that show them and with the page that is built from
it.
"""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from pathlib import Path

from differences import DIFFERENCES
from packaging.specifiers import SpecifierSet
from packaging.version import Version

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "compatibility_page.py"))


def test_every_difference_has_a_test_and_every_test_names_a_listed_difference():
    listed = Counter(row.id for rows in DIFFERENCES.values() for row in rows)
    assert max(listed.values()) == 1, "an id stands for one row"
    tests = [path.read_text("utf-8") for path in FOLDER.glob("test_*.py")]
    shown = {name for text in tests for name in re.findall(r'differs="([\w-]+)"', text)}
    assert shown == set(listed)


def test_the_page_is_made_from_the_list():
    page = SCRIPT["PAGE"].read_text("utf-8")
    assert page == SCRIPT["page"](), "run scripts/compatibility_page.py"


def test_the_lowest_version_that_is_allowed_has_been_tested():
    records = json.loads(SCRIPT["RECORDS"].read_text("utf-8")).values()
    for name, allowed in SCRIPT["allowed_versions"]().items():
        tested = [Version(versions[name]) for versions in records if name in versions]
        if not tested:
            continue
        assert all(version in SpecifierSet(allowed) for version in tested), name
        bound = next(item for item in SpecifierSet(allowed) if item.operator == ">=")
        lowest = Version(bound.version).release
        assert min(tested).release[: len(lowest)] == lowest, f"run make versions: {name}{bound}"
