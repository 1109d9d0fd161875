"""What a refresh has to do, as a pure function."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.app.index.rows import DocumentRow
from llama_index_contextual.app.index.status import RefreshReport, make_plan


def document(key, sha256, kind="file"):
    return DocumentRow(key, kind, sha256, made_with="s1")


def old(**contents):
    paths = {key.replace("__", "/") + ".md": value for key, value in contents.items()}
    return {path: document(path, value) for path, value in paths.items()}


def now(**contents):
    return {key.replace("__", "/") + ".md": value for key, value in contents.items()}


CASES = {
    "first time": ({}, now(a="1"), {}, RefreshReport(added=["a.md"])),
    "nothing": (old(a="1"), now(a="1"), {}, RefreshReport(skipped=1)),
    "edited": (old(a="1"), now(a="2"), {}, RefreshReport(changed=["a.md"])),
    "other settings": (
        old(a="1"),
        now(a="1"),
        {"made_with": "s2"},
        RefreshReport(outdated=["a.md"]),
    ),
    "gone": (old(a="1", b="2"), now(a="1"), {}, RefreshReport(deleted=["b.md"], skipped=1)),
    "renamed": (old(a="1"), now(b="1"), {}, RefreshReport(added=["b.md"], deleted=["a.md"])),
    "copied is not renamed": (
        old(a="1"),
        now(a="1", b="1"),
        {},
        RefreshReport(added=["b.md"], skipped=1),
    ),
    "documents delete nothing": (
        old(a="1"),
        now(b="2"),
        {"deletes": False},
        RefreshReport(added=["b.md"]),
    ),
    "an unreadable file stays": (
        old(a="1"),
        {},
        {"failed": [Problem("a.md", "")]},
        RefreshReport(),
    ),
    "a file that cannot be read now is never unchanged": (
        old(a="", b="2"),
        now(a="", b=""),
        {},
        RefreshReport(changed=["a.md", "b.md"]),
    ),
    "an unreadable folder stays": (
        old(x__a="1", b="2"),
        {},
        {"failed": [Problem("x/", "")]},
        RefreshReport(deleted=["b.md"]),
    ),
    "an unreadable file keeps no file whose name is longer": (
        old(a="1", b="2"),
        now(b="2"),
        {"failed": [Problem("a", "")]},
        RefreshReport(deleted=["a.md"], skipped=1),
    ),
    "an unreadable root deletes nothing": (
        old(a="1"),
        {},
        {"failed": [Problem("./", "")]},
        RefreshReport(),
    ),
    "a document given by hand is not a file": (
        {"id1": document("id1", "1", "document")},
        {},
        {},
        RefreshReport(),
    ),
}


@pytest.mark.parametrize(("before", "seen", "options", "expected"), CASES.values(), ids=CASES)
def test_plan(before, seen, options, expected):
    plan = make_plan(before, seen, **{"made_with": "s1", **options})
    assert replace(plan, failed=[]) == expected


contents = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("123"))


@given(contents, contents)
def test_every_document_has_exactly_one_fate(before, after):
    plan = make_plan(
        {key: document(key, value) for key, value in before.items()},
        after,
        made_with="s1",
    )
    assert len(plan.to_index) + plan.skipped == len(after)
    assert {*plan.deleted} == before.keys() - after
