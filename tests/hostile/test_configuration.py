"""Configuration files have limits.

A file beyond a limit is a clear error, and none keeps a processor busy.
"""

from __future__ import annotations

import pytest

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.utils.errors import SettingError

LINE = "a line has more than 4,000 characters"
BEYOND = {
    "20,000 keys": ("\n".join(f"k{n}=1" for n in range(20_000)), "has more than 100,000 bytes"),
    "keys on one line": ("x = {" + ",".join(f"k{n}=1" for n in range(5_000)) + "}", LINE),
    "a key of 20,000 parts": (".".join(["a"] * 20_000) + " = 1", LINE),
    "one inside a table": ("\n\nx = {" + ".".join(["a"] * 20_000) + " = 1}", LINE),
    "90 keys of 490 parts": (
        "\n".join(".".join([f"a{n}"] * 240) + " = 1" for n in range(90)),
        "is not a known setting|cannot be read as TOML",
    ),
    "brackets": ("x = " + "[" * 40_000, LINE),
    "brackets on many lines": ("x = " + "[\n" * 40_000, "cannot be read as TOML"),
    "tables in arrays": ("[[descriptions]]\n" * 5_000, "descriptions"),
    "a long list": (
        "[files]\ninclude = [" + '"*.md",\n' * 10_000 + "]",
        "files.include must ",
    ),
    "a number of 900 digits": (
        "[chunks]\nchunk_size = " + "9" * 900,
        r"chunks\.chunk_size must ",
    ),
    "unclosed quotes": ("x = " + '"""a\n' * 15_000 + "\\", "cannot be read as TOML"),
    "a name of 900 letters": ("a" * 900 + " = 1", r"a… is not a known setting"),
    "1,900 unknown names": (
        "\n".join(f"k{n}=1" for n in range(1_900)),
        r"k0 is not a known setting",
    ),
    "no UTF-8": (
        "\udcff",
        r"toml cannot be read as TOML in UTF-8: 'utf-8' codec can't decode ",
    ),
}


@pytest.mark.parametrize(("text", "message"), BEYOND.values(), ids=BEYOND)
def test_a_value_beyond_its_bounds_is_a_short_error(tmp_path, text, message):
    (tmp_path / "contextual.toml").write_text(text, "utf-8", errors="surrogateescape")
    with pytest.raises(SettingError, match=message) as error:
        load_configuration(tmp_path)
    assert len(str(error.value)) < 3_000


@pytest.mark.parametrize(
    "said",
    ["chunks.chunk_size", "retrieval.top_k", "retrieval.half_life_days", "memory.max_results"],
)
def test_numbers_stay_within_their_ranges(tmp_path, said):
    for value in ("10000000000000", "inf", "nan", "1e300"):
        (tmp_path / "contextual.toml").write_text(f"{said} = {value}\n", "utf-8")
        with pytest.raises(SettingError, match=rf": {said} (must be|is not valid)"):
            load_configuration(tmp_path)


def test_no_number_of_hits_switches_a_retriever_off(tmp_path):
    (tmp_path / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
    with ContextualIndex.open(tmp_path) as index:
        index.refresh()
        for count in (100_000, 2**40):
            explanation = index.as_retriever(count).explain("gateway")
            assert (explanation.warnings, len(explanation.hits)) == ((), 1)
