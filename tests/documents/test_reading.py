"""Bytes to text: what is read, what is repaired, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.app.folder.sources import read_bytes
from llama_index_contextual.errors import DocumentError
from llama_index_contextual.text import decode, replace_surrogates

READ = {
    "UTF-8": ("héllo\r\n".encode(), "héllo\r\n", ""),
    "UTF-8 with its mark": (b"\xef\xbb\xbf# A", "# A", ""),
    "UTF-16 with its mark": ("# Ä".encode("utf-16"), "# Ä", ""),
    "nothing": (b"", "", ""),
    "Latin-1": ("# Café\n".encode("latin-1"), "# Café\n", "byte 0xe9 at 5 is no UTF-8; read as Windows-1252"),
    "Windows-1252 quotes": (b"\x93quoted\x94", "“quoted”", "byte 0x93 at 0"),
    "a lone surrogate": (b"a \xed\xa0\x80 b", "a \ufffd b", "1 lone surrogate"),
}


@pytest.mark.parametrize(("data", "text", "repair"), READ.values(), ids=READ)
def test_text_is_read_and_repairs_are_told(data, text, repair):
    found = decode(data)
    assert found.text == text
    assert found.repair.startswith(repair)
    assert bool(found.repair) == bool(repair)


BINARY = {
    "a PNG": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "noise without NUL": bytes(range(1, 256)) * 20,
}


@pytest.mark.parametrize("data", BINARY.values(), ids=BINARY)
def test_binary_is_refused_with_a_cure(data):
    with pytest.raises(DocumentError, match=r"binary.*Cure"):
        decode(data)


def test_what_the_system_refuses_is_a_document_error(tmp_path):
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(DocumentError, match="cannot be read"):
        read_bytes(tmp_path / "folder.md")


@given(st.binary())
def test_any_bytes_are_text_without_surrogates_or_refused(data):
    try:
        found = decode(data)
    except DocumentError:
        return
    found.text.encode("utf-8")


@given(st.text(st.characters()))
def test_text_of_unicode_survives(text):
    clean, count = replace_surrogates(text)
    assert len(clean) == len(text)
    assert (clean == text) == (count == 0)
