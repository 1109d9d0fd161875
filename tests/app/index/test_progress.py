"""A refresh shows its progress in a terminal, and nothing elsewhere."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.cli import index_cmd
from llama_index_contextual.app.index import refresh
from llama_index_contextual.app.settings.local import LocalModel


@pytest.fixture
def folder(tmp_path):
    for number in range(40):
        (tmp_path / f"page{number}.md").write_text(
            f"# Page {number}\n\nTea of day {number} was green.\n", "utf-8"
        )
    return tmp_path


def test_in_a_terminal_a_bar_counts_documents(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh(show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Indexing" in err
    assert "Indexing 40 documents" in err


def test_nothing_is_shown_unless_requested_or_without_work(folder, capsys):
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
        index.refresh(show_progress=True)
    assert capsys.readouterr().err == ""


class Clock:
    """A clock that only the embedding moves."""

    def __init__(self):
        self.now = 1000.0
        self.seconds_per_character = 0.06

    def __call__(self):
        return self.now


CLOCK = Clock()


class Paced(LocalModel):
    """An embedding whose time depends on the length of the texts."""

    model_name: str = "paced"

    def embed(self, texts):
        CLOCK.now += CLOCK.seconds_per_character * sum(map(len, texts))
        return np.ones((len(texts), 4), np.float32) / 2


@pytest.fixture
def uneven_folder(tmp_path, monkeypatch):
    """Return a folder of short, long and again short documents, which time only an embedding."""
    monkeypatch.setattr(CLOCK, "now", 1000.0)
    monkeypatch.setattr(CLOCK, "seconds_per_character", 0.06)
    for number in range(60):
        sections = 12 if 20 <= number < 40 else 2
        text = f"# Journal {number}\n"
        for section in range(sections):
            sentences = " ".join(f"On day {day} pump {section} ran well." for day in range(40))
            text += f"\n## Pump {section}\n\n{sentences}\n"
        (tmp_path / f"{number:02}.md").write_text(text, "utf-8")
    return tmp_path


def test_the_first_estimate_is_right_within_a_factor_of_one_and_a_half(uneven_folder, monkeypatch):
    monkeypatch.setattr(index_cmd, "time", SimpleNamespace(monotonic=CLOCK))
    monkeypatch.setattr(index_cmd, "_BYTES_PER_MINUTE", 1)
    with ContextualIndex.open(uneven_folder, embed_model=Paced()) as index:
        estimate = index_cmd._estimate_work(index).minutes
        began = CLOCK.now
        index.refresh()
    assert 1 / 1.5 < (CLOCK.now - began) / 60 / estimate < 1.5


SHOWN = re.compile(r"(\d+)%\|.*\[([\d:]+)<([\d:]+),")


def seconds_of(clock):
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return total


@pytest.mark.parametrize("slowdown", [1, 3])
def test_the_estimate_of_the_bar_adapts_while_it_runs(uneven_folder, monkeypatch, capsys, slowdown):
    """The estimate is right within a factor of 1.5, also soon after the machine slows down."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("tqdm.std.time", CLOCK)
    monkeypatch.setattr(refresh, "BATCH_CHUNKS", 8)
    original = refresh.Refresh._write
    batches = []

    def write(self, batch):
        batches.append(batch)
        if len(batches) == 20:
            CLOCK.seconds_per_character *= slowdown
        original(self, batch)

    monkeypatch.setattr(refresh.Refresh, "_write", write)
    began = CLOCK.now
    with ContextualIndex.open(uneven_folder, embed_model=Paced()) as index:
        index.refresh(show_progress=True)
    total = CLOCK.now - began
    matches = map(SHOWN.search, capsys.readouterr().err.split("\r"))
    shown = [match.groups() for match in matches if match]
    assert len(shown) > 40
    for number, (share, elapsed, left) in enumerate(shown):
        is_adapting = slowdown > 1 and number < 35
        if number < 5 or int(share) > 95 or is_adapting:
            continue
        remaining = total - seconds_of(elapsed)
        assert 1 / 1.5 < seconds_of(left) / remaining < 1.5, (share, elapsed, left)
