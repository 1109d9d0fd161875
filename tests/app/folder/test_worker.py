"""A malicious document harms only its own conversion, which is ended and reported."""

import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from types import SimpleNamespace

import openpyxl
import pytest
import samples
from llama_index.core.storage.kvstore import SimpleKVStore

from llama_index_contextual.app.folder import archive
from llama_index_contextual.app.folder import convert as convert_module
from llama_index_contextual.app.folder.archive import Archive, local_name
from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.formats import ConversionError
from llama_index_contextual.app.folder.process import ConversionProcess, ConverterCrashedError
from llama_index_contextual.app.folder.worker import problem_of
from llama_index_contextual.utils.errors import DocumentError

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]


@pytest.fixture
def worker():
    worker = ConversionProcess()
    yield worker
    worker.close()


def convert(worker, path, seconds=60.0):
    return worker.convert(path, path.suffix, seconds)


def test_a_conversion_that_hangs_is_ended_and_the_next_document_is_converted(worker, tmp_path):
    path = samples.make("mail.eml", tmp_path)
    first = convert(worker, path)
    os.kill(worker._process.pid, signal.SIGSTOP)  # as a converter that never ends
    with pytest.raises(
        ConverterCrashedError,
        match=r"longer than 0\.5 seconds.*DocumentReader\(seconds=…\) among readers=",
    ):
        convert(worker, path, 0.5)
    assert convert(worker, path) == first


def test_a_crash_is_named_and_the_next_document_is_converted(worker, tmp_path):
    path = samples.make("mail.eml", tmp_path)
    first = convert(worker, path)
    process = worker._process
    os.kill(process.pid, signal.SIGSTOP)
    killing = threading.Timer(0.3, process.kill)
    killing.start()
    with pytest.raises(ConverterCrashedError, match=r"crashed \(SIGKILL\)"):
        convert(worker, path)
    assert convert(worker, path) == first
    worker._process.kill()  # between two documents
    worker._process.wait()
    assert convert(worker, path) == first


def test_one_process_converts_many_documents(worker, tmp_path):
    processes = set()
    for name in ("mail.eml", "page.html", "report.docx"):
        convert(worker, samples.make(name, tmp_path))
        processes.add(worker._process.pid)
    assert len(processes) == 1


def test_memory_has_a_limit(worker, tmp_path):
    path = tmp_path / "large.html"
    path.write_text("word " * 20_000_000, "utf-8")
    with pytest.raises(DocumentError, match="memory"):
        worker.convert(path, ".html", 60.0, 120)
    assert convert(worker, samples.make("mail.eml", tmp_path))["parts"]


@pytest.mark.parametrize(
    "attempt",
    [
        "open('written', 'w')",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
    ],
)
def test_the_process_cannot_start_programs_connect_or_write(tmp_path, attempt):
    start = (
        "import sys; from llama_index_contextual.app.folder.worker import _refuse; "
        "sys.addaudithook(_refuse)"
    )
    code = f"{start}\n{attempt}"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    assert "PermissionError: a converter is not allowed to do that" in result.stderr
    assert not (tmp_path / "written").exists()


def test_no_module_in_the_folder_of_the_documents_is_imported(worker, tmp_path, monkeypatch):
    """Run ``index .`` in somebody else's folder.

    Python's ``-c`` looks for modules in the working directory first.
    """
    monkeypatch.chdir(tmp_path)
    for name in (
        "json",
        "sys",
        "re",
        "bs4",
        "lxml",
        "email",
        "sitecustomize",
        "usercustomize",
        "llama_index_contextual",
    ):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\n", "utf-8")
    for name in ("mail.eml", "page.html", "report.docx"):
        assert convert(worker, samples.make(name, tmp_path))["parts"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("becomes", ["text", "pipe", "nothing"])
def test_a_conversion_of_a_file_that_changes_is_not_stored(tmp_path, monkeypatch, becomes):
    path, store = samples.make("mail.eml", tmp_path), SimpleKVStore()
    seconds, data, converted = (
        5.0 if becomes == "pipe" else 60.0,
        path.read_bytes(),
        convert_module._PROCESS,
    )
    reader = DocumentReader(conversions=store, seconds=seconds)

    def changed(*arguments):
        path.unlink()
        if becomes == "pipe":
            os.mkfifo(path)
        elif becomes == "text":
            path.write_bytes(data.replace(b"Dredging", b"Flooding"))
        return ConversionProcess.convert(converted, *arguments)

    monkeypatch.setattr(convert_module, "_PROCESS", SimpleNamespace(convert=changed))
    with pytest.raises(DocumentError, match=r"changed while|no longer a regular file"):
        reader.documents(path, data)
    monkeypatch.undo()
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    assert "Dredging" in reader.documents(path, data)[0].text


def test_bombs_are_refused_by_their_declared_sizes(tmp_path, monkeypatch):
    path = tmp_path / "bomb.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("word/document.xml", b"0" * 100_000)
    monkeypatch.setattr(archive, "_MAX_BYTES", 99_999)
    with (
        pytest.raises(ConversionError, match="100,000 bytes, which is too large for a document"),
        Archive(path),
    ):
        pass
    monkeypatch.undo()
    monkeypatch.setattr(archive, "_MAX_MEMBERS", 0)
    with pytest.raises(ConversionError, match="1 files"), Archive(path):
        pass


@pytest.mark.parametrize(
    "doctype",
    [
        (
            '<!DOCTYPE w [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY x '
            '"&b;&b;&b;&b;">]>'
        ),
        '<!DOCTYPE w [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
    ],
)
def test_xml_entities_are_refused(worker, tmp_path, doctype):
    path = tmp_path / "entities.docx"
    names = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    text = (
        f"{doctype}<w:document "
        f"{names}><w:body><w:p><w:r><w:t>&x;</w:t></w:r></w:p></w:body></w:document>"
    )
    with zipfile.ZipFile(path, "w") as document:
        document.writestr("word/document.xml", text)
    with pytest.raises(DocumentError, match="declares an entity"):
        convert(worker, path)


def test_entities_of_a_worksheet_are_refused_wherever_they_are_declared(worker, tmp_path):
    plain, path = tmp_path / "plain.xlsx", tmp_path / "entities.xlsx"
    openpyxl.Workbook().save(plain)
    doctype = " " * 3_000 + '<!DOCTYPE w [<!ENTITY x "aaaaaaaaaa">]>'
    with zipfile.ZipFile(plain) as book, zipfile.ZipFile(path, "w") as written:
        for name in book.namelist():
            data = book.read(name).decode()
            written.writestr(
                name, doctype + data.partition("?>")[2] if "worksheets/" in name else data
            )
    with pytest.raises(DocumentError, match="declares an entity"):
        convert(worker, path)


def test_nesting_has_a_limit(worker, tmp_path):
    path = tmp_path / "deep.html"
    path.write_text("<div>" * 100_000, "utf-8")
    with pytest.raises(DocumentError, match="nested too deeply"):
        convert(worker, path)


def test_an_encrypted_office_file_is_named_as_such(worker, tmp_path):
    path = tmp_path / "secret.docx"
    path.write_bytes(b"\xd0\xcf\x11\xe0" + bytes(2000))
    with pytest.raises(DocumentError, match="encrypted"):
        convert(worker, path)


def test_a_file_that_a_library_refuses_is_damaged(worker, tmp_path):
    (tmp_path / "a.csv").write_text(f'"{"a" * 1_100_000}"\n', "utf-8")
    with pytest.raises(
        DocumentError, match=r"it is damaged or not in csv format .*field larger than field limit"
    ):
        convert(worker, tmp_path / "a.csv")


def test_a_fault_of_this_package_is_not_blamed_on_the_file():
    """The place where an exception was raised tells whose it is.

    A library's says that the file is damaged.
    """

    def raised(call, *arguments):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            call(*arguments)
        return caught.value

    ours = problem_of(raised(local_name, None), "pdf")
    assert ours.startswith("a fault of llama-index-contextual, not of the file (archive.py, line ")
    assert ours.endswith("Report it, or ignore the file.")
    theirs = problem_of(raised(json.loads, "{"), "ipynb")
    assert theirs.startswith("it is damaged or not in ipynb format (JSONDecodeError: ")
    assert theirs.endswith("Save it again in its program, or ignore it.")


def _append(path):
    with path.open("a") as file:
        file.write("<p>And more.</p>")


def _replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [_append, os.remove, _replace_by_pipe], ids=lambda f: f.__name__)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_file_that_changes_while_it_is_converted_is_read_by_the_next_refresh(
    change, moment, tmp_path, monkeypatch
):
    """It is neither called too large nor waited for."""
    path = tmp_path / "page.html"
    path.write_text("<p>The tide is high.</p>", "utf-8")
    original = ConversionProcess.convert

    def converting(self, *arguments):
        if moment == "before":
            change(path)
        answer = original(self, *arguments)
        if moment == "after":
            change(path)
        return answer

    monkeypatch.setattr(ConversionProcess, "convert", converting)
    with pytest.raises(DocumentError, match=r"(changed while|no longer a).*Refresh again\.$"):
        DocumentReader(seconds=10).load_data(path)
