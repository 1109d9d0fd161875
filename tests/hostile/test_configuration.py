"""A configuration file is read with bounds: each of these is a clear error, and none keeps a processor busy."""

from __future__ import annotations

import pytest

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.settings.loading import MAX_BYTES, load_configuration
from llama_index_contextual.errors import SettingError

BEYOND = {
    "200,000 keys": ("\n".join(f"k{n}=1" for n in range(200_000)), "has more than 1,000,000 bytes"),
    "100,000 keys": ("\n".join(f"k{n}=1" for n in range(100_000)), "has 100,000 keys, and 2,000 are read at most"),
    "keys on one line": ("x = {" + ",".join(f"k{n}=1" for n in range(50_000)) + "}", "has 50,001 keys"),
    "a key of 20,000 parts": (".".join(["a"] * 20_000) + " = 1", "is deeper than 8 levels"),
    "one inside a table": ("\n\nx = {" + ".".join(["a"] * 20_000) + " = 1}", "is deeper than 8 levels"),
    "a table of 20,000 parts": ("[" + ".".join(["a"] * 20_000) + "]", "is deeper than 8 levels"),
    "quoted parts": (".".join(['"a"'] * 20_000) + " = 1", "is deeper than 8 levels"),
    "brackets": ("x = " + "[" * 400_000, "is deeper than 8 levels"),
    "tables in arrays": ("[[descriptions]]\n" * 50_000, "cannot work"),
    "a long list": ("[files]\ninclude = [" + '"*.md",' * 100_000 + "]", "files.include=.*cannot work"),
    "a number of 900,000 digits": ("[chunks]\nchunk_size = " + "9" * 900_000, "is not TOML"),
    "a hexadecimal one": (
        "[chunks]\nchunk_size = 0x" + "f" * 900_000,
        r"chunks\.chunk_size=.* cannot work",
    ),
    "a number of 300 digits": (
        "[chunks]\nchunk_size = " + "9" * 300,
        r"chunks\.chunk_size=.* cannot work",
    ),
    "unclosed quotes": ("x = " + '"""a' * 200_000 + "\\", "is not TOML"),
    "a string of escapes": ('x = "' + "\\\\" * 400_000, "is not TOML"),
    "a name of 900,000 letters": ("a" * 900_000 + " = 1", r"a… is not known"),
    "2,000 unknown names": ("\n".join(f"k{n}=1" for n in range(1_900)), r"is not known.* And 1892 more\."),
    "no UTF-8": ("\udcff", "cannot be read"),
}


@pytest.mark.parametrize(("text", "message"), BEYOND.values(), ids=BEYOND)
def test_what_is_beyond_the_bounds_is_a_short_error(tmp_path, text, message):
    (tmp_path / "contextual.toml").write_text(text, "utf-8", errors="surrogateescape")
    with pytest.raises(SettingError, match=message) as error:
        load_configuration(tmp_path)
    assert len(str(error.value)) < 3_000
    assert "Cure: " in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        '# a.b.c.d.e.f.g.h.i.j = 1\n[descriptions]\n"a" = "' + ". " * 140 + '[[[[[[[[["\n',
        "[descriptions]\na = '''\n[[[[[[[[[[[[\n'''\n" + 'b = """\n\\"""{{{{{{{{{{{{{"""\n',
        "".join(f'"{n}" = "1.2.3.4.5.6.7.8.9.10"\n' for n in range(1_000)).join(["[descriptions]\n", ""]),
        " " * (MAX_BYTES - 10),
    ],
)
def test_what_only_looks_so_is_read(tmp_path, text):
    (tmp_path / "contextual.toml").write_text(text, "utf-8")
    load_configuration(tmp_path)


@pytest.mark.parametrize(
    "said",
    ["chunks.chunk_size", "retrieval.top_k", "retrieval.half_life_days", "memory.max_results"],
)
def test_numbers_stay_within_their_ranges(tmp_path, said):
    for value in ("10000000000000", "inf", "nan", "1e300"):
        (tmp_path / "contextual.toml").write_text(f"{said} = {value}\n", "utf-8")
        with pytest.raises(SettingError, match=rf": {said}=.* cannot work\. Cure: "):
            load_configuration(tmp_path)


def test_no_number_of_hits_switches_an_arm_off(tmp_path):
    (tmp_path / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
    with ContextualIndex.open(tmp_path) as index:
        index.refresh()
        for count in (100_000, 2**40, 10**400):
            found = index.as_retriever(count).explain("gateway")
            assert (found.warnings, len(found.hits)) == ((), 1)
