"""Malicious texts must neither crash the process nor block it for minutes."""

import subprocess
import sys

import pytest
from growth import assert_linear

from llama_index_contextual.node_parser.front_matter import read_front_matter
from llama_index_contextual.node_parser.packing import split_markdown
from llama_index_contextual.utils.errors import ContextualWarning


@pytest.mark.process
@pytest.mark.parametrize(
    "nested", ["a: " + "[" * 100_000, "- " * 100_000 + "x", "? " * 100_000 + "x"]
)
def test_front_matter_nested_deeper_than_the_stack_is_text(nested):
    """It runs in its own process, because libyaml's composer used to crash it."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from llama_index_contextual.node_parser.front_matter import read_front_matter\n"
        "print(read_front_matter(sys.stdin.read()).end)"
    )
    text = f"---\n{nested}\n---\n# Title\n"
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", code],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_broken_front_matter_that_is_long_is_reported_too():
    with pytest.warns(ContextualWarning, match="cannot be read as YAML and is read line by line"):
        assert (
            read_front_matter("---\na: [" + "b, " * 1000 + "\n---\n").text("a").startswith("[b, b,")
        )


def test_long_front_matter_is_read_like_a_short_one():
    tags = ", ".join(f"tag{number}" for number in range(500))
    front = read_front_matter(f"---\ntitle: Long\ntags: [{tags}]\n---\ntext")
    assert (front.text("title"), front.text("tags")) == ("Long", tags)


@pytest.mark.parametrize(
    ("start", "unit", "end", "length"),
    [
        ("", ":::a", "\nfoo", 2_000),
        ("", "- ", "x", 20_000),
        ("# a", " ", "*\n\ntext", 30_000),
        ("#", " ", "a*\n\ntext", 30_000),
        ("", "{% comment\n", "", 80_000),
    ],
    ids=[
        "colons",
        "nested lists",
        "spaces in a heading",
        "spaces before a heading's text",
        "comments without ends",
    ],
)
def test_parsing_takes_linear_time(start, unit, end, length):
    split_markdown("warm up")
    assert_linear(split_markdown, lambda size: start + unit * (size // len(unit)) + end, length)
