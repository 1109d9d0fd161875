"""A short run of benchmarks/fuzz.py, and every input for which a long run found a fault."""

from importlib import import_module
from pathlib import Path

import pytest

# The path is removed again, because some of its modules have the names of other packages.
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    fuzz = import_module("fuzz")

COUNTS = {
    "documents": 1500,
    "messages": 500,
    "answers": 500,
}


@pytest.mark.parametrize(("kind", "count"), COUNTS.items(), ids=COUNTS)
@pytest.mark.long
def test_a_short_run_finds_nothing(kind, count):
    tally = fuzz.run([kind], seed=20261122, documents=count)[kind]
    assert (tally.inputs, tally.findings) == (count, {})


FOUND = {
    "a closing fence and the line before it, beyond the cap": (
        "documents",
        "a\n\n```py\nline 1\ncontext of chunk 1\n```",
    ),
    "a language of a fence is one long word": ("documents", "```:" + "<" * 1301 + "\na\nb"),
    "indentation counts, beyond the cap": (
        "documents",
        "<!-- [ a@b.c a@b.c 1:1:1: \u3164 $$\n \xa0 ---\ntitle x\n---\n | ^block [ ~~~ 1:1:1:",
    ),
    "a heading and its text, beyond the cap": (
        "documents",
        (
            ": : beta.: \r## Relevant prior context\n"
            '\u202e>**\U0001f468\u200d\U0001f469</details>\n**a@b.c{"context": '
            '"-->## Title'
        ),
    ),
    "three tokens a chunk: a heading and a fence, beyond the cap": (
        "documents",
        "13\n\n###\n###### six\n\n````\ndelta",
    ),
    "three tokens a chunk: the head of a table and a fence, beyond the cap": (
        "documents",
        "14\n\n|a\n|-\n```py\n%%မြန်မာ",
    ),
    "three tokens a chunk: a fence's first line and the next, beyond the cap": (
        "documents",
        '18\n\n```\n2026-11-221. "quoted',
    ),
    "forced over the size: a table, beyond the cap": (
        "documents",
        "| a | b |\n|---|---|\n*မြန်မာ## Relevant prior context\n\u0301\u0316* a\n## Title",
    ),
    "forced over the size: a quote, beyond the cap": (
        "documents",
        (
            ">  İ yesterday [^1] 2026-02-30 ` ![a]( ---\ntitle: \ud83d\n---\n #tag עברית "
            "---\ntitle: x\n---\n"
        ),
    ),
}


@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
@pytest.mark.parametrize(("kind", "given"), FOUND.values(), ids=FOUND)
def test_earlier_findings_are_fixed(kind, given):
    fuzz.KINDS[kind].check(given)


def test_a_finding_is_reproduced_by_its_number(monkeypatch, capsys):
    def check(source):
        fuzz.promise("|" not in source or "漢字" not in source, "both")

    monkeypatch.setitem(fuzz.KINDS, "messages", fuzz.Kind(check, 1, lambda _: check))
    [(what, (number, source))] = fuzz.run(["messages"], seed=7, documents=300)[
        "messages"
    ].findings.items()
    assert what.startswith("AssertionError both in ")
    assert "|" in source
    assert f"seed 7, messages {number}: " in capsys.readouterr().err
    repeated = fuzz.run(["messages"], seed=7, first=number, documents=1)
    assert repeated["messages"].findings == {what: (number, source)}


def test_quadratic_time_is_a_finding(monkeypatch):
    def slow(source):
        for offset in range(0, len(source), 10):
            source.count("\x1a" * 3, offset)

    assert fuzz.grows_too_fast(lambda source: [slow(source * 3) for _ in range(9)], "ab" * 1000)
    assert not fuzz.grows_too_fast(
        lambda source: [source.count("b") for _ in range(999)], "ab" * 1000
    )
