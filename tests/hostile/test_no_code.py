"""Nothing in a folder is executed.

There is no pickle, no eval, no class by name, and no setting of a library in its files.
"""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from storage import storage_of

import llama_index_contextual

PACKAGE = Path(llama_index_contextual.__file__).parent
FORBIDDEN_MODULES = {"_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "code"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
UNSAFE_YAML = {
    "load",
    "load_all",
    "unsafe_load",
    "full_load",
    "Loader",
    "UnsafeLoader",
    "FullLoader",
    "CLoader",
}


def faults_of(source, name="a file"):
    """Yield what in a Python source could run foreign data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            yield from (
                f"{name}: imports {module}"
                for module in modules
                if module.partition(".")[0] in FORBIDDEN_MODULES
            )
            if isinstance(node, ast.ImportFrom) and node.module == "pickle":
                yield f"{name}: imports of pickle"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in FORBIDDEN_CALLS
        ):
            yield f"{name}: calls {node.func.id}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "yaml" and node.attr in UNSAFE_YAML:
                yield f"{name}: yaml.{node.attr}"
            if node.value.id == "pickle" and node.attr != "dumps":  # writing objects reads nothing
                yield f"{name}: pickle.{node.attr}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            yield from (
                ()
                if "allow_pickle" in {keyword.arg for keyword in node.keywords}
                else (f"{name}: loads arrays",)
            )
        if isinstance(node, ast.keyword) and node.arg in (
            "allow_pickle",
            "trust_remote_code",
            "shell",
        ):
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            yield from () if value is False else (f"{name}: {node.arg}",)


def test_no_file_of_the_package_unpickles_or_evaluates():
    faults = [
        fault
        for file in PACKAGE.rglob("*.py")
        for fault in faults_of(file.read_text("utf-8"), file.name)
    ]
    assert faults == []
    bad = "from pickle import loads\nfrom dill import x\npickle.loads(x)\neval(y)\nyaml.load(z)\n"
    bad += "np.load(a, allow_pickle=True)\nnp.load(b)\n"
    assert len(list(faults_of(bad))) == 7


# From here on, whatever unpickles or evaluates ends the process. This includes its libraries.
PARTS = (
    "import llama_index_contextual.app.cli, llama_index_contextual.app.index, "
    "llama_index_contextual.memory"
)
GUARD = """
import builtins, os, pickle, sys, traceback
import _pickle, yaml

def refused(*_, **__):
    traceback.print_stack()
    os._exit(77)

class Refused:
    def __init__(self, *_, **__):
        refused()

pickle.loads = pickle.load = _pickle.loads = _pickle.load = pickle._loads = pickle._load = refused
pickle.Unpickler = _pickle.Unpickler = pickle._Unpickler = Refused
yaml.unsafe_load = yaml.full_load = yaml.unsafe_load_all = refused
load = yaml.load
yaml.load = lambda stream, Loader: load(stream, Loader) if Loader is yaml.SafeLoader else refused()
evaluate = builtins.eval
ANNOTATIONS = {"inspect", "typing", "typing_extensions", "pydantic", "dataclasses", "collections", "attr"}  # sources

def eval_annotation(*arguments):
    package = sys._getframe(1).f_globals["__name__"].partition(".")[0]
    return evaluate(*arguments) if package in ANNOTATIONS else refused()

builtins.eval = eval_annotation
"""  # noqa: E501
WORK = """
from llama_index_contextual.app.cli import main
for command in (["index", folder], ["search", "gateway", "--folder", folder], ["context", "what about it?", "--folder",
                folder], ["preview", folder + "/page.md"], ["status", folder],
                ["status", folder, "--check"], ["config", folder]):
    sys.argv = ["llama-index-contextual", *command]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 3), (command, end.code)
"""  # noqa: E501


class Bomb:
    """A pickle that creates a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.fixture
def hostile(tmp_path):
    """Return a folder with an index in which anything unpickled or imported creates a file."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "page.md").write_text(
        "---\ntags: !!python/object/apply:os.system ['false']\n---\n# Page\n\nIt waits.\n", "utf-8"
    )
    assert child("", WORK, folder).returncode == 0
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))
    storage = storage_of(folder)
    for place in (
        storage,
        *(path for path in storage.iterdir() if path.is_dir()),
        folder,
        tmp_path,
    ):
        (place / "index_metadata.pickle").write_bytes(bomb)
    (tmp_path / "evil.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n", "utf-8"
    )
    for place in (folder, tmp_path):
        (place / ".env").write_text(
            "LLAMA_INDEX_CONTEXTUAL_EMBED_MODEL=ollama:x\n",
            "utf-8",
        )
    return folder


def child(guard, work, folder):
    path = os.pathsep.join([str(PACKAGE.parent), str(folder.parent)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", f"import sys\nfolder = {str(folder)!r}\n{guard}\n{work}"]
    return subprocess.run(  # noqa: S603  our own script
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.process
def test_a_hostile_folder_and_its_index_run_nothing(hostile):
    done = child(f"{PARTS}\n{GUARD}", WORK, hostile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (hostile.parent / "ran").exists()


SEEN = ("pickle.loads(b'N.')", "pickle.Unpickler(None)", "yaml.load('a', yaml.Loader)", "eval('1')")


@pytest.mark.process
@pytest.mark.parametrize("work", SEEN)
def test_the_guard_detects_unpickling_and_evaluation(tmp_path, work):
    assert child(GUARD, work, tmp_path).returncode == 77
