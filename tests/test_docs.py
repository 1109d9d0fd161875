"""What the README says is true: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest
from click.testing import CliRunner
from llama_index.core.instrumentation import get_dispatcher
from llama_index.embeddings.ollama import OllamaEmbedding
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

import llama_index_contextual
from llama_index_contextual.app.cli import app
from llama_index_contextual.utils.errors import EXTRAS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
LINKED = [
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    ROOT / "tests" / "README.md",
    *(ROOT / "benchmarks").rglob("*.md"),
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readme_is_short_and_shows_the_pipeline_that_the_demo_runs():
    [example, pipeline] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert (ROOT / "examples" / "pipeline.py").read_text("utf-8").endswith(f'"""\n\n{pipeline}')
    assert example.count("\n") <= 15
    assert len(README) <= 9_000


def test_the_first_example_prints_what_the_readme_shows(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code[1], "README", "exec"), {"__name__": "pasted"})  # noqa: S102  our own page
    assert capsys.readouterr().out == code[2]


@pytest.mark.process
def test_the_demo_prints_what_the_readme_shows():
    done = subprocess.run(  # noqa: S603
        [sys.executable, ROOT / "examples" / "demo.py"], capture_output=True, text=True, check=True
    )
    shown = re.search(r"```\n(QueryFusionRetriever\n.*?)```", README, flags=re.DOTALL)[1]
    scores = re.compile(
        r"^\d\.\d\d ", flags=re.MULTILINE
    )  # a machine's rounding may change the last digit
    assert scores.sub("", shown) in scores.sub("", done.stdout)
    assert "llama-index-contextual index FOLDER" in done.stdout


@pytest.mark.server
def test_the_pipeline_runs_with_an_embedding_on_ollama(ollama_embedding_server, folder, capsys):
    code = (ROOT / "examples" / "pipeline.py").read_text("utf-8")
    swapped = code.replace("LocalEmbedding()", "OllamaEmbedding(MODEL, base_url=URL)")
    assert swapped != code
    # Chroma keeps one client per path in a process, and other tests use ".chroma".
    swapped = swapped.replace('".chroma"', f'"{folder / "chroma"}"')
    server = {"MODEL": ollama_embedding_server.model, "URL": ollama_embedding_server.url}
    exec(  # noqa: S102  our own example
        compile(swapped, "pipeline", "exec"), {"OllamaEmbedding": OllamaEmbedding, **server}
    )
    assert capsys.readouterr().out.count("scheduler.md#L") >= 2


@pytest.mark.parametrize("page", [*PAGES, *LINKED], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_links_and_pictures_of_the_readme_are_absolute_on_pypi():
    hook = runpy.run_path(str(ROOT / "scripts" / "pypi_readme.py"))
    shown = hook["with_addresses"](README)
    targets = re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', shown)
    addresses = [link or picture for link, picture in targets]
    assert len(addresses) > 20
    assert not [address for address in addresses if not address.startswith("https://")]
    assert not [address for address in addresses if "blob" in address and "images" in address]


def test_files_of_the_repository_that_a_page_names_exist():
    named = {
        name
        for page in PAGES
        for name in re.findall(
            r"\b(?:benchmarks|examples|notebooks|scripts|tests)/[\w/-]+\.(?:ipynb|jsonl?|md|py)\b",
            page.read_text("utf-8"),
        )
    }
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists()]


REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


def test_the_reference_names_members_that_exist():
    pages = "\n".join(page.read_text("utf-8") for page in REFERENCE)
    listed = re.findall(
        r"^::: (\S+)\n +options: \{[^}\n]*members: \[([^\]]*)\]", pages, re.MULTILINE
    )
    for path, members in listed:
        module, _, name = path.rpartition(".")
        documented = getattr(import_module(module), name)
        fields = getattr(documented, "model_fields", {})
        known = {*dir(documented), *getattr(documented, "__annotations__", {}), *fields}
        assert {member.strip() for member in members.split(",") if member.strip()} <= known, path
    assert len(listed) > 10


def test_every_public_name_has_a_reference_page():
    pages = {page.stem for page in REFERENCE}
    assert {*llama_index_contextual.__all__} <= pages


SECURITY = (ROOT / "docs" / "concepts" / "security.md").read_text("utf-8").partition("## Keys")[0]
FAULTS = (ROOT / "tests" / "README.md").read_text("utf-8")
TEST_NAME = re.compile(r"`([\w/.]+)::(\w+)`")


@pytest.mark.parametrize("page", [SECURITY, FAULTS], ids=["security", "faults"])
def test_every_row_of_a_table_of_faults_names_existing_tests(page):
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    heads = ("| Who", "| |", "| A program")
    rows = [row for row in rows if not row.startswith(heads) or "::" in row]
    assert len(rows) > 20
    assert not [row for row in rows if not row.endswith("` |") or not TEST_NAME.search(row)]
    for file, name in TEST_NAME.findall(page):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8"), (file, name)


def test_no_reported_fault_is_without_a_row():
    numbers = re.findall(r"^\| (\d+) \|", FAULTS, flags=re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 28))


def test_every_page_is_in_the_navigation():
    pages = re.findall(
        r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), flags=re.MULTILINE
    )
    docs = ROOT / "docs"
    figures = {"benchmarks/RESULTS.md"}  # from outside of docs
    assert (
        set(pages) == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} | figures
    )


def test_every_diagram_has_pictures_of_its_present_text():
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    pages = [page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")]
    diagrams = [diagram for page in pages for diagram in hooks["DIAGRAM"].findall(page)]
    pictures = {
        hooks["picture_name"](diagram, theme) for diagram in diagrams for theme in hooks["THEMES"]
    }
    drawn = {file.name for file in (ROOT / "docs" / "images" / "diagrams").iterdir()}
    assert diagrams
    assert drawn == pictures, "run docs/diagrams.py"


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium on this machine")
def test_the_search_of_a_site_in_a_folder_needs_no_network(tmp_path):
    """The theme downloads a script for it.

    The hook replaces that script by ours, and a worker runs in a page that is opened as a file.
    """
    hook = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["on_post_build"]
    shutil.copy(ROOT / "docs" / "offline-search.js", tmp_path)
    (tmp_path / "search.js").write_text(
        "addEventListener('message', e => postMessage(e.data + ' found'));", "utf-8"
    )
    ask = (
        "const w = new Worker('search.js'); w.addEventListener('message', e => "
        "document.body.textContent = e.data);"
    )
    page = tmp_path / "index.html"
    page.write_text(
        '<head><script src="https://unpkg.com/iframe-worker/shim"></script></head>'
        f"<body>nothing</body><script>{ask} w.postMessage('a page');</script>",
        "utf-8",
    )
    (tmp_path / "benchmarks").mkdir()
    below = shutil.copy(page, tmp_path / "benchmarks")
    hook(config=SimpleNamespace(site_dir=str(tmp_path)))
    assert "https://" not in page.read_text("utf-8")
    assert 'src="../offline-search.js"' in Path(below).read_text("utf-8")
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ]
    seen = subprocess.run(  # noqa: S603
        [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "a page found" in seen.stdout


def test_troubleshooting_names_every_extra_for_users():
    project = (
        (ROOT / "pyproject.toml")
        .read_text("utf-8")
        .split("[project.optional-dependencies]")[1]
        .split("\n[")[0]
    )
    declared = re.findall(r"^(\w+) = \[", project, flags=re.MULTILINE)
    said = re.search(
        r"Extras are (.*?) \|", (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    ).group(1)
    assert set(re.findall(r"`(\w+)`", said)) == set(declared[: declared.index("docs")])
    assert {*declared} - {"docs", "dev"} == {*EXTRAS}


def test_every_command_is_documented_and_every_documented_command_exists():
    names = {*app.commands}
    documents = "\n".join(page.read_text("utf-8") for page in PAGES)
    used = set(re.findall(r"llama-index-contextual ([a-z]+)\b", documents))
    assert used <= names, "a page names a command that does not exist"
    assert names <= used, "a command is documented nowhere"


def test_every_option_that_a_page_shows_exists():
    shown = {}
    for page in PAGES:
        for line in re.findall(r"llama-index-contextual [a-z]+ [^\n`#]*", page.read_text("utf-8")):
            _, name, *words = line.partition(" -- ")[0].split()
            options = {word.partition("=")[0].strip(",.'\"") for word in words if word[:2] == "--"}
            shown.setdefault(name, set()).update(options)
    assert len(shown) > 5
    for name, options in shown.items():
        known = {option for parameter in app.commands[name].params for option in parameter.opts}
        assert options <= known | {"--help"}, name


def texts_of_the_package():
    """Yield each text in the package's code, with its file and whether it is a docstring."""
    for file in Path(llama_index_contextual.__path__[0]).rglob("*.py"):
        tree = ast.parse(file.read_text("utf-8"))
        bodies = [
            node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)
        ]
        said = {body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield file.name, node.value, node in said


def test_every_page_that_the_package_names_is_there():
    for file, text, is_documentation in texts_of_the_package():
        files = re.findall(r"\b(?:docs|benchmarks)/[\w/-]+\.(?:md|py)", text)
        assert all((ROOT / name).is_file() for name in files), (file, text)
        assert is_documentation or not files, (
            f"{file}: a message names no file of the checkout: {text}"
        )


@pytest.mark.process
def test_an_installed_wheel_has_what_the_command_line_needs(tmp_path):
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)  # noqa: S603
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "llama_index_contextual", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(  # noqa: S603
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("llama-index-contextual")
    installed = {
        file.relative_to(tmp_path / "site").parts for file in (tmp_path / "site").rglob("*")
    }
    assert {parts[0].partition("-")[0] for parts in installed} == {"llama_index_contextual"}


def test_no_notebook_needs_what_only_the_tests_have():
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    texts = [
        "".join(cell["source"])
        for file in notebooks
        for cell in json.loads(file.read_text("utf-8"))["cells"]
    ]
    assert any("xllamacpp.Server" in text for text in texts), "the sources are read"
    assert not [text for text in texts if re.search(r"\btests/|\bpytest\b", text)]


PYTHON = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
FRAGMENT = (
    "# Fragment: "  # the first line of a block that needs what a page or a service has, and why
)
BLOCKS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(PYTHON.findall(page.read_text("utf-8")), 1)
    if not code.startswith(FRAGMENT)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_pages_import_from_this_package_exists(page):
    for code in PYTHON.findall(page.read_text("utf-8")):
        body = ast.parse(
            code, feature_version=(3, 10)
        ).body  # raises where an example is not Python
        ours = [
            statement
            for statement in body
            if isinstance(statement, ast.ImportFrom)
            and statement.module.startswith("llama_index_contextual")
        ]
        for statement in ours:
            module = import_module(statement.module)
            assert all(hasattr(module, alias.name) for alias in statement.names), ast.unparse(
                statement
            )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder like the checkout: examples, a page of notes, a page of docs, and questions.

    There is no language model.
    """
    for name in ("docs", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "page.md").write_text(
            "# Freeze\n\nThe freeze starts on 14 December.\n", "utf-8"
        )
    shutil.copytree(ROOT / "examples" / "notes", tmp_path / "examples" / "notes")
    (tmp_path / "questions.jsonl").write_text(
        '{"question": "When does the freeze start?", "path": "page.md"}\n', "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    # A page adds handlers, which would see all other tests.
    for handlers in ("event_handlers", "span_handlers"):
        monkeypatch.setattr(get_dispatcher(), handlers, list(getattr(get_dispatcher(), handlers)))
    yield tmp_path
    if LlamaIndexInstrumentor().is_instrumented_by_opentelemetry:
        LlamaIndexInstrumentor().uninstrument()  # the process has only one


@pytest.mark.parametrize("code", BLOCKS)
@pytest.mark.usefixtures("folder")
@pytest.mark.long
def test_a_block_of_a_page_runs_as_it_is_pasted(code):
    exec(compile(code, "page", "exec"), {"__name__": "pasted"})  # noqa: S102  our own page


@pytest.mark.long
def test_the_example_of_the_guide_to_evaluation_prints_what_it_shows(monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "guides" / "evaluation.md").read_text("utf-8")
    command = re.search(r"^llama-index-contextual (evaluate examples.*)$", page, re.MULTILINE)[1]
    shown = re.search(r"```\n(recall, .*?)```", page, re.DOTALL)[1]
    assert shown in CliRunner().invoke(app, command.split()).output


def test_few_blocks_are_fragments_and_each_says_why():
    blocks = [code for page in PAGES for code in PYTHON.findall(page.read_text("utf-8"))]
    fragments = [
        code.splitlines()[0].removeprefix(FRAGMENT) for code in blocks if code.startswith(FRAGMENT)
    ]
    assert len(fragments) < len(blocks) / 3
    assert all(len(reason) > 20 and reason.endswith(".") for reason in fragments)
