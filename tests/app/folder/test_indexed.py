"""Documents in the index of a folder: converted once, cited by page, and never silently lost."""

import pytest
import samples
from llama_index.core.schema import Document, MetadataMode
from llama_index.core.storage.kvstore import SimpleKVStore
from previewed import preview

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.evaluation import Passage, load_questions
from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.process import ConversionProcess, ConverterCrashedError
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.serve.html import chunk_data, preview_text
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import DocumentError, MissingExtraError, SettingError
from llama_index_contextual.utils.metadata import citation_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    root = tmp_path / "docs"
    root.mkdir()
    for name in ("report.pdf", "mail.eml", "fees.xlsx"):
        samples.make(name, root)
    (root / "note.md").write_text("# Note\n\nThe crane was painted.\n", "utf-8")
    (root / "broken.pdf").write_bytes(b"%PDF-1.7\nno more")
    return root


@pytest.fixture
def conversions(monkeypatch):
    converted, real = [], ConversionProcess.convert

    def counted(self, path, *args):
        converted.append(path.name)
        return real(self, path, *args)

    monkeypatch.setattr(ConversionProcess, "convert", counted)
    return converted


def missing(monkeypatch):
    monkeypatch.setattr("llama_index_contextual.app.folder.formats.has_extra", lambda: False)


def test_a_broken_file_does_not_affect_other_files_of_a_folder(folder):
    with ContextualIndex.open(folder, embed_model="none") as index:
        report = index.refresh()
        assert report.added == ["fees.xlsx", "mail.eml", "note.md", "report.pdf"]
        assert [problem.path for problem in report.failed] == ["broken.pdf"]
        assert "damaged or not a PDF" in report.failed[0].reason
        assert report.repaired == []
        cited = {citation_of(node.metadata) for node in index.nodes()}
        assert {"report.pdf#page=2", "fees.xlsx#sheet=Fees"} <= cited
        mail = next(node for node in index.nodes() if node.metadata["path"] == "mail.eml")
        assert (mail.metadata["date"], mail.metadata["sender"]) == (
            "2026-03-02",
            "Iris Vale <iris@example.org>",
        )
        assert index.status(check=True).problems == []
        [hit, *_] = index.as_retriever(1).retrieve("How long is the northern berth in metres?")
        assert hit.node.metadata["path"] in {"report.pdf", "fees.xlsx"}


def test_nothing_is_converted_twice_and_reading_needs_no_converter(
    folder, conversions, monkeypatch
):
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
        once = ["broken.pdf", "fees.xlsx", "mail.eml", "report.pdf"]
        assert sorted(conversions) == once
        conversions.clear()
        assert "Tides of year 2" in index.read("report.pdf")
        (folder / "report.pdf").rename(folder / "moved.pdf")
        index.refresh()
        preview(index, "moved.pdf")
    missing(monkeypatch)
    with ContextualIndex.open(folder, embed_model="none", reindex=True) as index:
        report = index.refresh()
        assert report.deleted == []
        assert "Tides of year 2" in index.read("moved.pdf")
        assert preview(index, "moved.pdf")[0].metadata["page"] == 1
        assert index.status(check=True).problems == []
    assert set(conversions) <= {"broken.pdf"}


def test_a_preview_stores_nothing(folder, conversions):
    with ContextualIndex.open(folder, embed_model="none") as index:
        assert preview(index, "report.pdf")
        assert not index.exists


def test_without_the_extra_a_pdf_is_not_text_whatever_is_included(folder, monkeypatch):
    missing(monkeypatch)
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
        assert sorted(index.documents()) == ["note.md"]
        assert index.settings.find_files().skipped == [
            "broken.pdf",
            "fees.xlsx",
            "mail.eml",
            "report.pdf",
        ]
    with ContextualIndex.open(
        folder, embed_model="none", files=FileRules(include=("*.pdf",))
    ) as index:
        reasons = {problem.path: problem.reason for problem in index.refresh(confirm=True).failed}
        assert set(reasons) == {"broken.pdf", "report.pdf"}
        assert all(
            r"pip install 'llama-index-contextual[documents]'" in reason
            for reason in reasons.values()
        )
        with pytest.raises(DocumentError, match="pip install"):
            preview(index, "report.pdf")


def test_a_new_revision_of_a_converter_converts_its_files_again(folder, monkeypatch):
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
    monkeypatch.setattr(formats, "REVISION", 99)
    with ContextualIndex.open(folder, embed_model="none") as index:
        assert index.refresh().outdated == ["fees.xlsx", "mail.eml", "note.md", "report.pdf"]


def test_a_custom_reader_takes_precedence(folder):
    class Own(DocumentReader):
        def load_data(self, file, extra_info=None, fs=None):
            raise AssertionError(file)

        def documents(self, path, data, extra_info=None):
            return [page for page in super().documents(path, data) if page.metadata["page"] == 2]

    with ContextualIndex.open(folder, embed_model="none", readers={".pdf": Own()}) as index:
        index.refresh()
        pages = {
            node.metadata.get("page")
            for node in index.nodes()
            if node.metadata["path"] == "report.pdf"
        }
    assert pages == {2}


def test_conversions_are_kept_in_any_key_value_store(tmp_path, conversions, monkeypatch):
    path, store = samples.make("report.pdf", tmp_path), SimpleKVStore()
    first = DocumentReader(conversions=store).load_data(path)
    missing(monkeypatch)
    assert [document.text for document in DocumentReader(conversions=store).load_data(path)] == [
        document.text for document in first
    ]
    assert conversions == ["report.pdf"]
    with pytest.raises(MissingExtraError, match="documents"):
        DocumentReader().load_data(path)


def test_a_conversion_that_took_too_long_is_not_repeated_with_the_same_limits(
    tmp_path, monkeypatch
):
    path, store, tried = samples.make("mail.eml", tmp_path), SimpleKVStore(), []

    def lost(self, path, suffix, *limits):
        tried.append(limits)
        raise ConverterCrashedError("too long")

    monkeypatch.setattr(ConversionProcess, "convert", lost)
    for seconds in (1, 1, 2):
        with pytest.raises(DocumentError, match="too long"):
            DocumentReader(seconds=seconds, conversions=store).load_data(path)
    assert tried == [(1.0, 2000), (2.0, 2000)]
    monkeypatch.undo()
    assert DocumentReader(seconds=30, conversions=store).load_data(path)


def test_one_page_is_read_by_its_citation(folder):
    with ContextualIndex.open(folder, embed_model="none") as index:
        pages = [page.text for page in DocumentReader().load_data(folder / "report.pdf")]
        assert index.read("report.pdf#page=2") == pages[1]
        assert "| Day | 12.5 |" in index.read("fees.xlsx#sheet=Fees")
        assert index.read("report.pdf") == "\n\n".join(pages)
        assert index.read("report.pdf#page=4") is index.read("lost.pdf#page=1") is None
        (folder / "a#page=1.md").write_text("# Named like a page\n", "utf-8")
        assert index.read("a#page=1.md").startswith("# Named")


def test_a_page_can_be_the_answer_to_a_question(folder, tmp_path):
    asked = tmp_path / "questions.jsonl"
    asked.write_text(
        '{"question": "How high was the tide?", "path": "report.pdf", "page": 2}\n', "utf-8"
    )
    [question] = load_questions(asked)
    assert str(question.gold[0]) == "report.pdf#page=2"
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
        holders = {
            citation_of(node.metadata) for node in index.nodes() if question.covered_by(node)
        }
        assert holders == {"report.pdf#page=2"}
    with pytest.raises(SettingError, match="or a text without lines and page"):
        Passage(text="tide", page="2")
    asked.write_text('{"question": "How high?", "path": "report.pdf", "page": [2]}\n', "utf-8")
    with pytest.raises(DocumentError, match=r"questions.jsonl:1: `page` must be .*\[2\]"):
        load_questions(asked)


def test_a_preview_names_pages_and_treats_no_page_as_a_repetition(folder):
    with ContextualIndex.open(folder, embed_model="none") as index:
        chunks = chunk_data(preview(index, "report.pdf"))
    cited = [(chunk["citation"].rpartition("/")[2], chunk["overlap"]) for chunk in chunks]
    assert cited == [(f"report.pdf#page={page}", "") for page in (1, 2, 3)]
    assert "page=2 · " in preview_text("report.pdf", chunks)


def test_short_sections_of_a_page_share_a_chunk_since_its_headings_are_guesses(folder):
    text = "".join(
        f"## Berth {name}\n\n{'The quay was built of stone in that year. ' * 6}\n\n"
        for name in "ABCDEF"
    )
    (folder / "berths.md").write_text(text, "utf-8")
    html = "".join(
        f"<h2>Berth {name}</h2><p>{'The quay was built of stone in that year. ' * 6}</p>"
        for name in "ABCDEF"
    )
    (folder / "berths.html").write_text(html, "utf-8")
    parser = HeadingAwareMarkdownNodeParser()
    [page] = DocumentReader().load_data(folder / "berths.html")
    assert len(parser([page])) == len(parser([Document(text=text)])) == 6
    page.metadata["page_label"] = "1"
    assert [node.text.count("Berth") for node in parser([page])] == [3, 3]


def test_left_out_content_is_named_only_in_the_first_part(folder):
    (folder / "page.html").write_text("<p>Text<img src=a><img src=b><script>x</script>", "utf-8")
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
        lacking = {
            node.metadata["path"]: node for node in index.nodes() if "left_out" in node.metadata
        }
    assert {path: node.metadata["left_out"] for path, node in lacking.items()} == {
        "page.html": "2 pictures; 1 script",
        "mail.eml": "1 attachment",
        "report.pdf": "6 repeated margin lines",
    }
    for mode in (MetadataMode.EMBED, MetadataMode.LLM):
        assert "pictures" not in lacking["page.html"].get_content(mode)
