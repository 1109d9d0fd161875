import inspect
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import tomlkit

import llama_index_contextual

PUBLIC_CLASSES = [
    name
    for name in llama_index_contextual.__all__
    if name not in {"ContextualError", "ContextualWarning", "contextual_tools"}
]


@pytest.mark.parametrize("name", llama_index_contextual.__all__)
def test_every_public_name_can_be_imported_and_is_documented(name):
    thing = getattr(llama_index_contextual, name)
    assert thing.__doc__
    assert thing.__name__ == name


@pytest.mark.process
@pytest.mark.parametrize("name", ["ContextualIndex", "LocalEmbedding"])
def test_the_application_s_names_are_found_at_the_top_without_an_import_of_it(name):
    code = f"""
import sys, llama_index_contextual
from llama_index_contextual import *
assert not [module for module in sys.modules if module.startswith("llama_index_contextual.app")]
from llama_index_contextual import {name} as top
from llama_index_contextual.app import {name}
assert top is {name}
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


@pytest.mark.parametrize("name", PUBLIC_CLASSES)
def test_every_constructor_names_its_settings(name):
    parameters = inspect.signature(getattr(llama_index_contextual, name)).parameters
    collected = {
        parameter.name
        for parameter in parameters.values()
        if parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
    }
    assert collected <= {"unknown"}, "what is collected is refused by name"
    assert len(parameters) > 1


def test_no_future_python_is_refused():
    project = tomlkit.parse((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["requires-python"] == ">=3.10"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = llama_index_contextual.no_such_name


def test_the_metadata_for_llama_hub_name_every_public_class():
    public = [getattr(llama_index_contextual, name) for name in llama_index_contextual.__all__]
    classes = {
        thing.__name__
        for thing in public
        if isinstance(thing, type) and not issubclass(thing, Exception)
    }
    project = tomlkit.parse((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    hub = project["tool"]["llamahub"]
    assert hub["import_path"] == llama_index_contextual.__name__
    assert set(hub["class_authors"]) == classes


def test_the_version_is_the_distribution_s():
    try:
        installed = version("llama-index-contextual")
    except PackageNotFoundError:
        pytest.skip("the package is not installed, only importable")
    assert llama_index_contextual.__version__ == installed


@pytest.mark.process
def test_importing_the_package_imports_no_heavy_part():
    heavy = ("chromadb", "onnxruntime", "openai")
    code = (
        f"import sys, llama_index_contextual; print([name for name in {heavy} if name in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", PUBLIC_CLASSES)
def test_a_constructor_names_and_documents_its_parameters(name):
    public_class = getattr(llama_index_contextual, name)
    parameters = inspect.signature(public_class.__init__).parameters
    of_llama_index = {"callback_manager", "objects", "object_map", "verbose"}
    fields = set(getattr(public_class, "model_fields", {}))
    assert fields <= {*parameters, *of_llama_index, "generator"}
    documentation = f"{public_class.__doc__}{public_class.__init__.__doc__}"
    for parameter in parameters.values():
        if (
            parameter.name not in {"self", *of_llama_index}
            and parameter.kind != parameter.VAR_KEYWORD
        ):
            assert f"{parameter.name}:" in documentation, parameter.name
            assert parameter.annotation is not parameter.empty, parameter.name
