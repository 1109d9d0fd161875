"""A refresh shows how far it is: lines in a pipe, one that changes in a terminal, nothing where nobody asks."""

import re

import pytest
from fake_model import Reply

from llama_index_contextual.app.index import ContextualIndex, progress
from llama_index_contextual.context import llm as generator
from llama_index_contextual.errors import ContextualWarning


@pytest.fixture
def folder(tmp_path):
    for number in range(40):
        text = "".join(f"\n## Part {part}\n\nTea of day {number} and part {part} was green.\n" for part in range(2))
        (tmp_path / f"page{number}.md").write_text(f"# Page {number}\n{text}", "utf-8")
    return tmp_path


def test_in_a_pipe_lines_count_files_contexts_and_chunks_up_to_all_of_them(folder, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with ContextualIndex.open(folder) as index:
        report = index.refresh(show_progress=True)
    out, err = capsys.readouterr()
    counts = [
        tuple(map(int, re.findall(r"\d+", line.partition(" chunks")[0])))
        for line in err.splitlines()
        if line.startswith("Indexing: ")
    ]
    assert out == ""
    assert counts == sorted(counts)
    assert counts[-1] == (40, 40, report.chunks, report.chunks)
    shares = [int(share) for share in re.findall(r"\((\d+)%\)", err)]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert len(counts) > 40, "after each file, group and batch of texts"
    assert re.search(r"\d/s, about \d+ (s|min) left", err)


def test_a_language_model_s_calls_tokens_and_failures_are_said(folder, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with (
        ContextualIndex.open(folder, context="llm", llm="openai:m@http://127.0.0.1:9/v1") as index,
        pytest.warns(ContextualWarning),
    ):
        index.refresh(show_progress=True)
    assert re.search(r"contexts \(\d+ calls, \d+ tokens, 40 fell back\)", capsys.readouterr().err)


@pytest.mark.long
@pytest.mark.parametrize("local", [True, False])
def test_what_a_paid_model_has_cost_so_far_is_said(folder, capsys, monkeypatch, fake_model, local):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(generator, "is_local", lambda _: local)
    fake_model.reply = lambda *_: Reply(usage={"prompt_tokens": 200_000, "completion_tokens": 0})
    llm = fake_model.llm.replace(":fake@", ":gpt-4.1-nano@")
    with ContextualIndex.open(folder, context="llm", llm=llm) as index:
        index.refresh(show_progress=True)
        calls = index.settings.pipeline.contexts.usage.calls
    said = re.findall(r"calls, [\d,]+ tokens(?:, \$([\d.]+))?", capsys.readouterr().err)
    assert said[-1] == ("" if local else f"{calls * 0.02:.2f}"), "200,000 tokens of 0.1 dollars a million"


def test_in_a_terminal_a_line_is_drawn_and_taken_away(folder, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with ContextualIndex.open(folder) as index:
        index.refresh(show_progress=True)
    err = capsys.readouterr().err
    assert all(part in err for part in ("files read", "contexts", "indexed (100%)"))


def test_nothing_is_shown_where_nobody_asks_or_nothing_is_to_do(folder, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with ContextualIndex.open(folder) as index:
        index.refresh()
        index.refresh(show_progress=True)
    assert capsys.readouterr().err == ""
