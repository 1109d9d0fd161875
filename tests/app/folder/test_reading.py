"""Decoding files: which bytes are read, repaired or refused."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.app.folder.files import decode, read_file
from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.text import replace_surrogates

READ = {
    "UTF-8": ("héllo\r\n".encode(), "héllo\r\n", ""),
    "UTF-8 with its mark": (b"\xef\xbb\xbf# A", "# A", ""),
    "UTF-16 with its mark": ("# Ä".encode("utf-16"), "# Ä", ""),
    "nothing": (b"", "", ""),
    "Latin-1": (
        "# Café\n".encode("latin-1"),
        "# Café\n",
        "byte 0xe9 at 5 is not UTF-8, so it was read as Windows-1252",
    ),
    "Windows-1252 quotes": (b"\x93quoted\x94", "“quoted”", "byte 0x93 at 0"),
    "a lone surrogate": (b"a \xed\xa0\x80 b", "a \ufffd b", "1 lone surrogate"),
}


@pytest.mark.parametrize(("data", "text", "repair"), READ.values(), ids=READ)
def test_text_is_read_and_repairs_are_reported(data, text, repair):
    decoded = decode(data)
    assert decoded.text == text
    assert decoded.repair.startswith(repair)
    assert bool(decoded.repair) == bool(repair)


BINARY = {
    "a PNG": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "noise without NUL": bytes(range(1, 256)) * 20,
}


@pytest.mark.parametrize("data", BINARY.values(), ids=BINARY)
def test_binary_files_are_refused_with_a_hint(data):
    with pytest.raises(DocumentError, match=r"binary.*Ignore it"):
        decode(data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"%PDF-1.7\n1 0 obj", "a PDF"),
        (b"{\\rtf1 Tea}", "an RTF file"),
        (b"PK\x03\x04 a", "a ZIP or Office file"),
    ],
)
def test_a_file_of_another_type_is_named_by_its_first_bytes(data, kind):
    with pytest.raises(DocumentError, match=f"it is {kind}, not text. Ignore it"):
        decode(data)


@pytest.mark.skipif(os.name == "nt", reason="pipes and devices of POSIX")
@pytest.mark.parametrize(
    "kind", ["folder", "pipe", "device", "link to a device", "loop", "nothing", "NUL"]
)
def test_only_a_regular_file_is_opened(tmp_path, kind):
    path = tmp_path / "file.md"
    makers = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link to a device": lambda: path.symlink_to("/dev/zero"),
        "loop": lambda: path.symlink_to(path),
    }
    makers.get(kind, lambda: None)()
    path = {"device": "/dev/zero", "NUL": f"{path}\0"}.get(kind, path)
    with pytest.raises(DocumentError, match=r"not a regular file|cannot be read"):
        read_file(path)


def test_a_file_is_read_up_to_a_size_and_within_its_folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out.md").write_text("secret")
    (tmp_path / "in" / "a.md").write_text("text")
    (tmp_path / "in" / "link.md").symlink_to(tmp_path / "in" / "a.md")
    (tmp_path / "in" / "out.md").symlink_to(tmp_path / "out.md")
    (tmp_path / "in" / "up").symlink_to(tmp_path)
    assert read_file(tmp_path / "in" / "a.md", 4, root=tmp_path / "in") == b"text"
    assert read_file(tmp_path / "in" / "link.md", 4, root=tmp_path / "in") == b"text"
    with pytest.raises(DocumentError, match="more than 3 bytes"):
        read_file(tmp_path / "in" / "a.md", 3)
    with (tmp_path / "sparse.jsonl").open("wb") as file:
        file.truncate(800_000_000)
    with pytest.raises(DocumentError, match=r"more than 100,000,000 bytes\. Split it"):
        read_file(tmp_path / "sparse.jsonl")
    for name in ("in/out.md", "in/up/out.md"):
        assert read_file(tmp_path / name) == b"secret"
        with pytest.raises(DocumentError, match=r"a symbolic link out of .*Read its target"):
            read_file(tmp_path / name, root=tmp_path / "in")


@given(st.binary())
def test_any_bytes_are_text_without_surrogates_or_refused(data):
    try:
        decoded = decode(data)
    except DocumentError:
        return
    decoded.text.encode("utf-8")


@given(st.text(st.characters()))
def test_text_of_unicode_survives(text):
    clean, count = replace_surrogates(text)
    assert len(clean) == len(text)
    assert (clean == text) == (count == 0)
