"""Which files of a folder are read, and how the other ones are reported."""

import os

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from llama_index_contextual.app.folder.folders import Folders
from llama_index_contextual.app.folder.walk import (
    FileRules,
    matcher_of,
    pattern_of,
    summary_of_skipped,
    walk_folders,
)
from llama_index_contextual.utils.errors import SettingError


@pytest.fixture
def tree(tmp_path):
    """Return a function that creates files in a folder from a mapping of paths to texts."""

    def make(files):
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return tmp_path

    return make


def find_files(root, rules, **options):
    return walk_folders(Folders(root, {"": root}), rules, **options)


def paths(discovery):
    return [file.path for file in discovery.files]


def test_patterns_decide_in_their_order_whatever_suffixes_they_end_in(tree):
    files = (
        "a.md",
        "b.draft.md",
        "c.tar.gz",
        "d.gz",
        "Makefile",
        "keep/e.draft.md",
        "keep/f.txt",
        "g.txt",
    )
    patterns = ("*.md", "!*.draft.md", "*.tar.gz", "Makefile", "keep/**")
    discovery = find_files(tree(dict.fromkeys(files, "x")), FileRules(include=patterns))
    assert paths(discovery) == ["Makefile", "a.md", "c.tar.gz", "keep/e.draft.md", "keep/f.txt"]


CASES = {
    "Markdown and text, by suffix": (
        {
            "a.md": "",
            "b/c.txt": "",
            "d.png": "",
            "e.MARKDOWN": "",
            "f.rst": "",
            "g.qmd": "",
            "H.MD": "",
            "i.rMd": "",
        },
        {},
        ["H.MD", "a.md", "b/c.txt", "e.MARKDOWN", "f.rst", "g.qmd", "i.rMd"],
    ),
    "hidden files and folders are left out": (
        {".a.md": "", ".git/b.md": "", "c.md": ""},
        {},
        ["c.md"],
    ),
    "unless they are wanted, but for an index": (
        {".a.md": "", ".contextual/b.md": "", "c.md": ""},
        {"hidden": True},
        [".a.md", "c.md"],
    ),
    "a .gitignore is obeyed": (
        {".gitignore": "drafts/\n*.tmp.md", "drafts/a.md": "", "b.tmp.md": "", "c.md": ""},
        {},
        ["c.md"],
    ),
    "a deeper .gitignore overrules": (
        {".gitignore": "*.md\n", "keep/.gitignore": "!*.md\n", "keep/a.md": "", "b.md": ""},
        {},
        ["keep/a.md"],
    ),
    "patterns in .gitignore are relative to it": (
        {"sub/.gitignore": "/a.md\n", "sub/a.md": "", "a.md": "", "sub/deep/a.md": ""},
        {},
        ["a.md", "sub/deep/a.md"],
    ),
    ".gitignore can be switched off": (
        {".gitignore": "*.md", "a.md": ""},
        {"gitignore": False},
        ["a.md"],
    ),
    "patterns of one's own": (
        {"a.md": "", "b/a.md": "", "c.py": ""},
        {"exclude": ("/a.md",), "include": ("*.md", "*.py")},
        ["b/a.md", "c.py"],
    ),
    "a folder named like a file is entered": (
        {"notes.md/inside.md": "", "notes.md/pic.png": "", "book.txt/deep/cover.jpg": ""},
        {},
        ["notes.md/inside.md"],
    ),
    "a pattern of folders wants what is in them": (
        {"docs/a.py": "", "docs/deep/b.py": "", "other/docs/c.py": "", "d.py": ""},
        {"include": ("/docs/",)},
        ["docs/a.py", "docs/deep/b.py"],
    ),
    "as does one that names them or everything below": (
        {"docs/a.py": "", "docs/deep/b.py": "", "x/c.py": "", "x/y/d.py": "", "e.py": ""},
        {"include": ("docs", "/x/**", "!/x/y/d.py")},
        ["docs/a.py", "docs/deep/b.py", "x/c.py"],
    ),
}


@pytest.mark.parametrize(("files", "rules", "expected"), CASES.values(), ids=CASES)
def test_rules_decide_which_files_are_read(tree, files, rules, expected):
    assert paths(find_files(tree(files), FileRules(**rules))) == expected


def test_a_part_of_the_folder_keeps_paths_relative_to_the_whole_and_the_ignore_rules_above_it(tree):
    root = tree(
        {
            ".gitignore": "b.md\n",
            "sub/a.md": "",
            "sub/b.md": "",
            "other/c.md": "",
            "subway/d.md": "",
        }
    )
    assert paths(find_files(root, FileRules(), below="sub")) == ["sub/a.md"]
    assert paths(find_files(root, FileRules(), below="sub/a.md")) == ["sub/a.md"]


def test_the_storage_folder_is_never_read_even_if_it_is_not_hidden(tree):
    root = tree({"a.md": "", "store/notes.md": ""})
    assert paths(find_files(root, FileRules(), exclude=root / "store")) == ["a.md"]


def test_a_document_can_be_larger_than_a_text(tree):
    root = tree({"long.md": "# Long\n", "long.pdf": "%PDF-1.7\n"})
    discovery = find_files(root, FileRules(include=("*.md", "*.pdf"), max_bytes=5))
    assert paths(discovery) == ["long.pdf"]
    assert [problem.path for problem in discovery.problems] == ["long.md"]


@pytest.mark.skipif(os.name == "nt", reason="no name holds a backslash there")
def test_a_name_with_a_backslash_is_reported(tree):
    discovery = find_files(tree({"notes\\plan.md": "# Plan\n", "a.md": "# A\n"}), FileRules())
    assert paths(discovery) == ["a.md"]
    [problem] = discovery.problems
    assert str(problem) == "notes\\plan.md: its name has a backslash. Rename it."


def test_a_large_file_is_reported_with_its_size_and_the_setting(tree):
    root = tree({"big.md": "x" * 2000, "small.md": "x"})
    discovery = find_files(root, FileRules(max_bytes=1000))
    assert paths(discovery) == ["small.md"]
    assert [str(problem) for problem in discovery.problems] == [
        "big.md: 2,000 bytes are more than max_bytes=1,000. Split it, or raise that."
    ]


def test_a_link_inside_the_folder_is_not_read_twice_and_one_out_of_it_is_reported(
    tree, tmp_path_factory
):
    root = tree({"a.md": "here"})
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.md"
    secret.write_text("there")
    (root / "again.md").symlink_to(root / "a.md")
    (root / "out.md").symlink_to(secret)
    (root / "broken.md").symlink_to(root / "missing.md")
    discovery = find_files(root, FileRules())
    assert paths(discovery) == ["a.md"]
    assert {problem.path for problem in discovery.problems} == {"out.md", "broken.md"}
    reasons = {problem.path: problem.reason for problem in discovery.problems}
    assert reasons["out.md"].endswith("Index the other folder, too: NAME=PATH.")


def test_a_link_inside_the_folder_is_listed_as_not_read(tree):
    root = tree({"a.md": "", "sub/b.md": "", ".hidden/c.md": "", ".gitignore": "gone.md\n"})
    for link, target in {
        "a2.md": "a.md",
        "sub2": "sub",
        "c.md": ".hidden/c.md",
        "gone.md": "a.md",
    }.items():
        (root / link).symlink_to(root / target)
    results = find_files(root, FileRules())
    assert (paths(results), results.problems) == (["a.md", "sub/b.md"], [])
    assert results.skipped == ["a2.md", "c.md", "sub2"]


def test_a_loop_of_links_ends(tree):
    root = tree({"a/b/c.md": ""})
    (root / "a/b/loop").symlink_to(root / "a")
    (root / "self.md").symlink_to(root / "self.md")
    assert paths(find_files(root, FileRules())) == ["a/b/c.md"]


def test_a_folder_too_deep_is_refused_by_name_and_the_rest_is_read(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(600):  # deeper than a path may be long
        os.mkdir("deep", dir_fd=descriptor)
        inner = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    (tmp_path / "good.md").write_text("text")
    discovery = find_files(tmp_path, FileRules())
    assert paths(discovery) == ["good.md"]
    assert [problem.path for problem in discovery.problems] == ["deep/" * 101]
    assert "100 folders deep" in discovery.problems[0].reason


def test_a_ring_of_links_costs_linear_time(tmp_path, monkeypatch):
    """Each folder holds a link to the next one.

    Followed without care, a thousand of them are a million folders.
    """
    for number in range(1000):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}/a.md").write_text("text")
        (tmp_path / f"d{number}/next").symlink_to(tmp_path / f"d{(number + 1) % 1000}")
        (tmp_path / f"r{number}.md").symlink_to(tmp_path / f"r{(number + 1) % 1000}.md")
    calls, real = [], os.readlink
    monkeypatch.setattr(
        os, "readlink", lambda *args, **options: calls.append(args) or real(*args, **options)
    )
    discovery = find_files(tmp_path, FileRules())
    assert len(discovery.files) == 1000
    assert {problem.path for problem in discovery.problems} == {
        f"r{number}.md" for number in range(1000)
    }
    assert len(calls) < 10_000


def test_a_folder_that_cannot_be_listed_is_reported_and_the_rest_is_read(tree, monkeypatch):
    root = tree({"a.md": "", "closed/b.md": ""})
    real = os.scandir

    def scandir(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    discovery = find_files(root, FileRules())
    assert paths(discovery) == ["a.md"]
    assert [str(problem) for problem in discovery.problems] == [
        "closed/: the folder cannot be read (Permission denied)."
    ]


def test_a_name_that_is_not_utf8_is_reported(tmp_path):
    with open(os.path.join(os.fsencode(tmp_path), b"caf\xe9.md"), "wb") as file:  # noqa: PTH118, PTH123  bytes
        file.write(b"text")
    discovery = find_files(tmp_path, FileRules())
    assert not discovery.files
    assert "not valid UTF-8" in discovery.problems[0].reason
    str(discovery.problems[0]).encode()


@pytest.mark.parametrize("kind", ["pipe", "device", "link out", "link to itself", "folder", "huge"])
def test_an_invalid_ignore_file_is_reported_and_not_read(tree, tmp_path_factory, kind):
    root = tree({"a.md": "here", "secret.md": "there"})
    ignore, elsewhere = root / ".gitignore", tmp_path_factory.mktemp("elsewhere") / "rules"
    elsewhere.write_text("a.md\n")
    makers = {
        "pipe": lambda: os.mkfifo(ignore),
        "device": lambda: ignore.symlink_to("/dev/zero"),
        "link out": lambda: ignore.symlink_to(elsewhere),
        "link to itself": lambda: ignore.symlink_to(ignore),
        "folder": ignore.mkdir,
        "huge": lambda: ignore.write_text("a.md\n" * 300_000),
    }
    makers[kind]()
    discovery = find_files(root, FileRules())
    assert paths(discovery) == ["a.md", "secret.md"]
    assert [problem.path for problem in discovery.problems] == [".gitignore"]
    assert "not applied" in discovery.problems[0].reason


def test_an_ignore_file_can_be_a_link_inside_the_folder(tree):
    root = tree({"a.md": "here", "rules": "a.md\n", "b.md": "there"})
    (root / ".gitignore").symlink_to(root / "rules")
    assert paths(find_files(root, FileRules())) == ["b.md"]


@pytest.mark.parametrize(
    "line", ["*a*a*a*a*a*a*b", "x*a*a*a*a*a*a*b/", "*a*a*/**/*a*a*a*b", "**/*a?a*a[ab]*a*a*c"]
)
def test_patterns_with_many_stars_take_little_time(tree, line):
    """Without the rewriting, one name of 200 letters takes minutes."""
    root = tree({f"{'a' * 200}.md": "", f"x{'a' * 150}/{'a' * 200}.md": "", "ok.md": ""})
    (root / ".gitignore").write_text(line + "\n")
    assert "ok.md" in paths(find_files(root, FileRules()))


STARS = st.text(st.sampled_from("ab*?."), min_size=1, max_size=9)


@settings(deadline=None)
@given(STARS, st.text(st.sampled_from("ab."), min_size=1, max_size=9))
def test_patterns_with_many_stars_match_as_in_pathspec(pattern, name):
    assume(pattern_of(pattern) is not None)
    plain = GitIgnoreSpec.from_lines([pattern])
    assert pattern_of(pattern).match_file(name) == plain.match_file(name)
    assert pattern_of(f"d/{pattern}/*b*a").match_file(f"d/{name}/aba") == GitIgnoreSpec.from_lines(
        [f"d/{pattern}/*b*a"]
    ).match_file(f"d/{name}/aba")


@pytest.mark.parametrize("line", ["!", "! ", "\\", "drafts\\", "[z-a]"])
def test_a_line_that_is_not_a_pattern_does_not_disable_an_ignore_file(tmp_path, line):
    (tmp_path / ".gitignore").write_text(f"{line}\nsecret.md\n")
    for name in ("a.md", "secret.md"):
        (tmp_path / name).write_text("text")
    assert paths(find_files(tmp_path, FileRules())) == ["a.md"]


def test_skipped_files_are_counted_by_kind(tmp_path, monkeypatch):
    for name in (
        "a.md",
        "b.pdf",
        "c.PDF",
        "d.docx",
        "Makefile",
        ".hidden.pdf",
        "old/e.eml",
        "f.log",
        "contextual.toml",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / ".gitignore").write_text("*.log\n")
    discovery = find_files(tmp_path, FileRules(include=("*.md",)))
    assert discovery.skipped == ["Makefile", "b.pdf", "c.PDF", "d.docx", "old/e.eml"]
    counts = "5 files not read: 2 pdf, 1 docx, 1 eml, 1 of other kinds"
    assert summary_of_skipped(discovery.skipped) == counts
    monkeypatch.setattr("llama_index_contextual.app.folder.formats.has_extra", lambda: False)
    assert find_files(tmp_path, FileRules()).skipped == discovery.skipped
    assert summary_of_skipped(discovery.skipped) == (
        f"{counts}; pip install 'llama-index-contextual[documents]' reads some of them"
    )
    assert summary_of_skipped(["a.exe"]) == "1 file not read: 1 exe"
    assert summary_of_skipped(["man.1", "a.exe"]) == "2 files not read: 1 exe, 1 of other kinds"
    assert summary_of_skipped([]) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_bytes": 0},
        {"include": ()},
        {"include": "*.md"},
        {"exclude": "*.md"},
        {"exclude": ("[z-a]",)},
        {"include": ("!",)},
    ],
)
def test_wrong_rules_are_named(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        FileRules(**wrong)


@pytest.mark.parametrize(
    "name", ["a.md", "b/C.MD", "x.md/y", "d/.md", "e.d.ts", "f.ts", "drafts/g.md", "h.mdx", "md"]
)
@pytest.mark.parametrize(
    "include",
    [
        ("*.md",),
        ("*.md", "!drafts/*.md"),
        ("*.ts", "*.d.ts"),
        ("*.md", "*.ts", "md"),
        ("docs/*.md", "*.md"),
    ],
)
def test_a_kind_named_by_one_pattern_is_read_according_to_all_patterns(include, name):
    """Most names are judged by their suffix alone."""
    either_case = [line.replace(".md", ".[mM][dD]") for line in include]
    last = GitIgnoreSpec.from_lines(either_case).check_file(name).include
    expected = bool(last) and not name.startswith("x.md/")  # never a whole folder of that name
    assert matcher_of(include)(name) == expected
