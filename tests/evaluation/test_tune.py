"""Settings are chosen by questions, and written only where the gain is more than chance."""

import numpy as np
import pytest

from llama_index_contextual.app.evaluation import Passage, Question, tune
from llama_index_contextual.app.evaluation.tune import NOW, Tuning, _candidates, _choose
from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.errors import SettingError

NAMES = ("Gateway", "Scheduler", "Archive", "Console", "Mailer", "Printer", "Indexer", "Router")
THINGS = ("Timeout", "Retries", "Buffer", "Limit")


@pytest.fixture
def folder(tmp_path):
    """Eight pages whose sections say the same, but for their headings."""
    made = tmp_path / "docs"
    made.mkdir()
    for name in NAMES:
        sections = "".join(
            f"## {thing}\n\nThe default value is 60. It can be changed in the file of settings, which is read again "
            "at every start. A value that cannot be read is refused with a line in the log. Nothing depends on it, and "
            "nothing is lost when it is changed while the program runs. What was begun before goes on with "
            "the former value, until it is done. The next one begins with the new value, whatever it may be.\n\n"
            for thing in THINGS
        )
        (made / f"{name.lower()}.md").write_text(f"# {name}\n\n{sections}", "utf-8")
    return made


def test_what_the_folder_asks_for_besides_is_part_of_every_candidate(folder):
    """Else settings would be written beside a recency that they were never measured with."""
    (folder / "contextual.toml").write_text("[retrieval]\nrecency = true\nper_file = 1\n", "utf-8")
    with ContextualIndex.open(folder) as index:
        index.refresh()
        steps = [
            [type(step).__name__ for step in asked.node_postprocessors] for *_, asked in _candidates("x", index, 5)
        ]
    assert all(found[0] == "RecencyPostprocessor" for found in steps)
    assert any(len(found) == 1 for found in steps), "without grouping"


ASKED = ("Which defaults does the {} have?", "What can be set in the {}?", "{} settings", "Defaults of the {}")
QUESTIONS = [
    Question(text.format(name.lower()), tuple(Passage(f"{name.lower()}.md", text=f"## {thing}") for thing in THINGS))
    for name in NAMES
    for text in ASKED
]


@pytest.mark.long
def test_settings_that_find_more_are_chosen_and_written(folder):
    """All sections of a page answer, and the present settings allow one chunk of it."""
    (folder / "contextual.toml").write_text(
        "# mine\ncontext = 'off' # for now\n\n[retrieval]\nper_file = 1\ntop_k = 3\n", "utf-8"
    )
    asked = []
    found = tune(folder, QUESTIONS, top_k=[5], contexts=["headings"], say=asked.append)
    assert len(asked) == 2
    assert found.is_more_than_chance, str(found)
    assert found.settings["context"] == "headings"
    assert found.scores[NOW] < max(found.scores.values())
    assert not (folder / ".contextual").exists()
    found.write(folder / "contextual.toml")
    text = (folder / "contextual.toml").read_text("utf-8")
    assert "# mine" in text
    assert "top_k = 3" in text
    assert 'context = "headings" # for now' in text
    assert "per_file = 1" not in text
    again = tune(folder, QUESTIONS, top_k=[5], contexts=["headings"])
    assert not again.is_more_than_chance
    with pytest.raises(SettingError, match="nothing is written: The "):
        again.write(folder / "contextual.toml")
    assert (folder / "contextual.toml").read_text("utf-8") == text


def test_what_chance_chooses_gains_nothing_on_other_questions():
    rng = np.random.default_rng(0)
    rows = {NOW: rng.random(60), **{f"x{n}": rng.random(60) for n in range(40)}}
    found = _choose(rows, {name: {"retrieval.per_file": 1} if name != NOW else {} for name in rows}, (5,))
    best = max(row.mean() for row in rows.values())
    assert 100 * (best - rows[NOW].mean()) > 5, "the best of forty looks better"
    assert found.settings
    assert not found.is_more_than_chance
    assert "may be chance" in str(found)
    assert found.to_dict()["is_more_than_chance"] is False


def test_a_real_gain_is_found_and_few_questions_never_choose():
    rng = np.random.default_rng(0)
    now = rng.random(60) * 0.5
    rows = {NOW: now, "better": now + 0.3, "worse": now - 0.1}
    settings = {NOW: {}, "better": {"retrieval.per_file": 2}, "worse": {"retrieval.per_file": 1}}
    found = _choose(rows, settings, (5, 10))
    assert found.gain == pytest.approx((30, 30, 30))
    assert found.is_more_than_chance
    assert "More than chance: retrieval.per_file = 2" in str(found)
    few = _choose({name: row[:20] for name, row in rows.items()}, settings, (5,))
    assert not few.is_more_than_chance
    assert "20 questions are too few" in str(few)
    same = _choose({NOW: now, "worse": now - 0.1}, settings, (5,))
    assert (same.settings, str(same).splitlines()[-1]) == ({}, "The present settings are the best of these.")


def test_a_file_is_made_where_there_is_none(tmp_path):
    found = Tuning({"context": "pattern", "retrieval.keyword_weight": None}, {}, (3.0, 1.0, 5.0), 40, (5,))
    found.write(tmp_path / "contextual.toml")
    assert (tmp_path / "contextual.toml").read_text("utf-8") == 'context = "pattern"\n\n[retrieval]\n'
