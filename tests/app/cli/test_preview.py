import json

from llama_index.core.schema import Document

from llama_index_contextual.app.serve.html import chunk_data, preview_text
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser


def shown(text, name="text", **settings):
    nodes = HeadingAwareMarkdownNodeParser(**settings)([Document(text=text)])
    return preview_text(name, chunk_data(nodes))


def test_a_file_shows_its_header_paths_lines_and_tokens():
    text = "# Guide\n\nWords.\n\n## [red]Install[/red]\n\n```sh\nmake\n```\n"
    output = shown(text, "page.md", min_chunk_size=1)
    assert "page.md: 2 chunks" in output
    assert "Guide > [red]Install[/red]" in output
    assert "L5-L9" in output
    assert "code" in output


def test_overflow_and_continuation_are_shown():
    rows = "\n".join(f"| {n} | word word word |" for n in range(80))
    output = shown(
        f"| id | text |\n|---|---|\n{rows}\n\n" + "word " * 55,
        chunk_size=50,
        chunk_overlap=0,
        min_chunk_size=0,
    )
    assert "continues | id | text |" in output
    assert "over chunk_size" in output


def test_an_empty_text_says_so():
    assert "text: no text" in shown(" \n")


def test_content_left_out_of_a_file_is_named(run, tmp_path):
    folder, shown = tmp_path / "docs", tmp_path / "shown.html"
    folder.mkdir()
    (folder / "page.html").write_text("<p>Text<img src=a><img src=b><script>x</script>", "utf-8")
    (folder / "one.md").write_text("# One\n\nA sentence.\n", "utf-8")
    lacks = "2 pictures; 1 script"
    assert (
        f"page.html: 1 chunk, 1 token\n\n── 1  ── L1 · 1 token · text · left out: {lacks}\n"
        in run("preview", folder / "page.html").stdout
    )
    assert json.loads(run("preview", folder / "page.html", "--json").stdout)[0]["left_out"] == lacks
    assert run("preview", folder / "page.html", "--html", shown).returncode == 0
    assert f"Left out: {lacks}." in shown.read_text("utf-8")
    assert "left out" not in run("preview", folder / "one.md").stdout
    for command in (["index", "--list-skipped"], ["status", "--list-skipped"]):
        assert run(*command, folder).stderr.count("left out:") == 1
    assert f"left out: page.html: {lacks}\n" in run("status", folder, "--list-skipped").stderr
    assert "left out" not in run("status", folder).stderr


def test_the_tokens_of_one_chunk_are_shown_once(run, tmp_path):
    (tmp_path / "one.md").write_text("# One\n\nA sentence.\n", "utf-8")
    assert "one.md: 1 chunk, 5 tokens" in run("preview", tmp_path / "one.md").stdout


def test_a_path_without_a_file_is_named_with_a_remedy(run, tmp_path):
    done = run("preview", tmp_path / "nosuch.md")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nosuch.md does not exist. Check the path." in done.stderr
