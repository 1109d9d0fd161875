"""``plan``: the arithmetic, what it says of its constants, and numbers that cannot work."""

import json
import re

import pytest

from llama_index_contextual.context.usage import Prices
from llama_index_contextual.errors import SettingError
from llama_index_contextual.sizing import MEASURED_CHUNKS, READER_MEMORY, sizing


def test_everything_grows_with_the_pages():
    one, ten = sizing(100_000, llm="openai:gpt-4.1-mini"), sizing(1e6, llm="openai:gpt-4.1-mini")
    for name in (
        "chunks",
        "disk",
        "store_hours",
        "embedding_tokens",
        "embedding_hours",
        "llm_calls",
        "llm_hours",
        "price",
    ):
        assert getattr(ten, name) == pytest.approx(10 * getattr(one, name), rel=1e-4), name
    assert one.memory < ten.memory < 10 * one.memory  # a reader needs something whatever it reads
    assert ten.embedding_workers == pytest.approx(ten.embedding_hours / 24, abs=1)
    assert sizing(1e6, days=10).embedding_workers == pytest.approx(ten.embedding_workers / 10, abs=1)
    assert sizing(1e6, page_chars=14_322).chunks == pytest.approx(2 * ten.chunks, rel=0.01)
    assert sizing(1, page_chars=10).chunks == 1  # the shortest page is a chunk


def test_a_model_is_paid_by_the_list_or_by_the_prices_given():
    listed = sizing(1000, llm="openai:gpt-4.1-mini")
    tokens = listed.llm_tokens
    assert listed.price == pytest.approx(Prices(0.4, 1.6, 0.1).of(tokens))
    assert listed.priced_by.startswith("list of ")
    assert sizing(1000, llm="gpt-4.1-mini").price == listed.price
    assert sizing(1000, llm="openai:gpt-4.1-mini@http://gateway/v1").price == listed.price
    given = sizing(1000, llm="openai:mine", prices=Prices(1, 2))
    assert given.price == pytest.approx((tokens.prompt + 2 * tokens.completion) / 1e6)
    assert given.priced_by == "given"
    assert sizing(1000, llm="openai:mine").price is None
    free = sizing(1000)
    assert (free.llm_calls, free.price) == (0, 0.0)


def test_it_says_where_the_embedded_store_and_the_measurements_end():
    small, large = sizing(100), sizing(1e6)
    assert small.chunks < MEASURED_CHUNKS < large.chunks
    assert small.memory < READER_MEMORY < large.memory
    assert (small.embedded_store, small.extrapolated) == (True, False)
    assert (large.embedded_store, large.extrapolated) == (False, True)
    assert "take a server" in str(large)
    assert "take a server" not in str(small)
    assert "times what was measured" in str(large)
    assert "times what was measured" not in str(small)


@pytest.mark.parametrize("wrong", [{"pages": 0}, {"pages": -1}, {"pages": float("nan")}, {"pages": 0.5}, {"days": 0}])
def test_numbers_that_cannot_work_are_named(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        sizing(**{"pages": 10, **wrong})


def test_the_command_prints_each_constant_with_its_source(run):
    done = run("plan", "--pages", "1e6", "--context", "llm", "--llm", "openai:gpt-4.1-mini")
    assert done.returncode == 0
    assert "1,000,000 pages" in done.stdout
    assert "dollars, by the list of" in done.stdout
    constants = done.stdout.partition("by these constants")[2].splitlines()[1:]
    assert len(constants) >= 10
    assert all(re.search(r"\(.*(\d{4}-\d{2}-\d{2}|not measured).*\)$", line) for line in constants)
    data = json.loads(run("plan", "--pages", "1e6", "--json").stdout)
    assert data["chunks"] == sizing(1e6).chunks
    assert data["measured"]["chunk_disk"]["source"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--llm", "openai:x"], "--context llm"),
        (["--context", "llm"], "--llm MODEL"),
        (["--context", "magic"], "magic"),
        (["--price", "1/2"], "--price"),
        (["--context", "llm", "--llm", "x", "--price", "1"], "--price"),
    ],
)
def test_options_that_do_not_fit_are_named(run, options, named):
    done = run("plan", "--pages", "10", *options)
    assert done.returncode == 1
    assert named in done.stderr


def test_one_is_no_plural_and_a_moment_is_no_fraction_of_a_minute():
    small, large = str(sizing(1, page_chars=10)), str(sizing(1e6, days=2, llm="openai:mine"))
    assert small.startswith("1 page: about 1 chunk\n")
    assert "local embedding: 1 second of one core\n  to end in 1 day: 1 core\n" in small
    assert re.search(r"to end in 2 days: \d+ cores\n", large)
    assert re.search(r"[\d,]+ hours one after the other\n  to end in 2 days: [\d,]+ calls at a time", large)
