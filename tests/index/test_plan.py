"""What a refresh has to do, as a pure function."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.app.index.plan import Plan, make_plan
from llama_index_contextual.app.store.database import DocumentRow


def document(key, sha256, kind="file"):
    return DocumentRow(key, kind, sha256, made_with="s1")


def old(**contents):
    paths = {key.replace("__", "/") + ".md": value for key, value in contents.items()}
    return {path: document(path, value) for path, value in paths.items()}


def now(**contents):
    return {key.replace("__", "/") + ".md": value for key, value in contents.items()}


CASES = {
    "first time": ({}, now(a="1"), {}, Plan(added=("a.md",))),
    "nothing": (old(a="1"), now(a="1"), {}, Plan(unchanged=("a.md",))),
    "edited": (old(a="1"), now(a="2"), {}, Plan(changed=("a.md",))),
    "other settings": (old(a="1"), now(a="1"), {"made_with": lambda _: "s2"}, Plan(outdated=("a.md",))),
    "gone": (old(a="1", b="2"), now(a="1"), {}, Plan(deleted=("b.md",), unchanged=("a.md",))),
    "renamed": (old(a="1"), now(b="1"), {}, Plan(added=("b.md",), deleted=("a.md",), renamed=(("b.md", "a.md"),))),
    "copied is not renamed": (old(a="1"), now(a="1", b="1"), {}, Plan(added=("b.md",), unchanged=("a.md",))),
    "two renamed with equal content": (
        old(a="1", b="1"),
        now(c="1", d="1"),
        {},
        Plan(added=("c.md", "d.md"), deleted=("a.md", "b.md"), renamed=(("c.md", "a.md"), ("d.md", "b.md"))),
    ),
    "a part never deletes outside itself": (old(x__a="1", y__b="2"), {}, {"covered": "x"}, Plan(deleted=("x/a.md",))),
    "nor in a folder whose name starts like it": (old(x2__a="1"), {}, {"covered": "x"}, Plan()),
    "documents delete nothing": (old(a="1"), now(b="2"), {"covered": None}, Plan(added=("b.md",))),
    "an unreadable file stays": (old(a="1"), {}, {"blocked": ["a.md"]}, Plan()),
    "a file that cannot be read now is never unchanged": (
        old(a="", b="2"),
        now(a="", b=""),
        {},
        Plan(changed=("a.md", "b.md")),
    ),
    "nor is it renamed": (old(a=""), now(b=""), {}, Plan(added=("b.md",), deleted=("a.md",))),
    "an unreadable folder stays": (old(x__a="1", b="2"), {}, {"blocked": ["x/"]}, Plan(deleted=("b.md",))),
    "an unreadable root deletes nothing": (old(a="1"), {}, {"blocked": ["./"]}, Plan()),
    "a document given by hand is no file": ({"id1": document("id1", "1", "document")}, {}, {}, Plan()),
}


@pytest.mark.parametrize(("before", "seen", "options", "expected"), CASES.values(), ids=CASES)
def test_plan(before, seen, options, expected):
    assert make_plan(before, seen, **{"made_with": lambda _: "s1", "covered": "", **options}) == expected


contents = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("123"))


@given(contents, contents)
def test_every_document_has_exactly_one_fate(before, after):
    plan = make_plan(
        {key: document(key, value) for key, value in before.items()},
        after,
        made_with=lambda _: "s1",
        covered="",
    )
    fates = [*plan.added, *plan.changed, *plan.outdated, *plan.deleted, *plan.unchanged]
    assert sorted(fates) == sorted({*before, *after})
    assert all(after[new] == before[gone] for new, gone in plan.renamed)
