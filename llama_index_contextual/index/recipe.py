"""What made an index, as plain values: kept in its database, and made again from it where nobody says otherwise.

What cannot be written down (a lambda, an object that cannot be imported or made again) is kept as a name alone. A
process that is not given it again may read the index, and may not write it.

An index may be a stranger's. What a folder's configuration may not say by itself, an index may not either, unless
it has this user's seal or the user trusts the folder. Nothing of the rest is imported, opened or asked.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.node_parser import NodeParser
from llama_index.core.prompts import PromptTemplate
from llama_index.core.readers.base import BaseReader

from llama_index_contextual.config.trust import digest_of, is_sealed, is_trusted, may_say, seal_of
from llama_index_contextual.context.kinds import resolve_generator
from llama_index_contextual.embeddings import model_id
from llama_index_contextual.errors import without_credentials
from llama_index_contextual.index.pipeline import parser_settings
from llama_index_contextual.index.state import DEFAULT_NAME, Choices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_index_contextual.context.base import ContextGenerator
    from llama_index_contextual.index.state import IndexState

_CLASS: Final = "class"
_SETTINGS: Final = "settings"
_SKIPPED: Final = frozenset({"callback_manager", "id_func", "class_name"})


class UnwritableError(ValueError):
    """A setting cannot be written down, or cannot be made again from what was."""


# What two objects of a kind have alike, where one is the other made again.
_ALIKE: Final[dict[type[Any], Callable[[Any], Any]]] = {
    NodeParser: lambda parser: (parser_settings(parser), parser.id_func),
    BaseEmbedding: model_id,
    BaseReader: vars,
}


def written_object(thing: object, kind: type[Any]) -> dict[str, Any]:
    """Return a node parser, an embedding or a reader as JSON: its class by import path, and its settings without a key.

    Raises:
        UnwritableError: It would not come back as it is.
    """
    own: Any = type(thing)
    if own.__module__ == "__main__" or "<" in own.__qualname__:
        raise UnwritableError(own.__qualname__)
    fields = own.model_fields if isinstance(thing, BaseModel) else ()
    names = (name for name in fields if name not in _SKIPPED and not (kind is BaseEmbedding and "key" in name))
    plain = {name: value for name in names if is_plain(value := getattr(thing, name))}
    written = {_CLASS: f"{own.__module__}:{own.__qualname__}", _SETTINGS: plain}
    if _ALIKE[kind](read_object(written, kind)) != _ALIKE[kind](thing):
        raise UnwritableError(own.__qualname__)
    return written


def read_object(written: Mapping[str, Any], kind: type[Any]) -> Any:
    """Return an object that was written down.

    Args:
        written: Its class by import path, and its settings.
        kind: What it has to be.

    Raises:
        UnwritableError: It cannot be imported or made.
    """
    try:
        module, _, name = str(written[_CLASS]).partition(":")
        found = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, KeyError, ValueError) as error:
        raise UnwritableError(f"{written.get(_CLASS)} ({type(error).__name__}: {error})") from error
    if not (isinstance(found, type) and issubclass(found, kind)):  # before it is called: an index names no commands
        raise UnwritableError(f"{written[_CLASS]} is no {kind.__name__}")
    try:
        return found(**written[_SETTINGS])
    except Exception as error:
        raise UnwritableError(f"{written[_CLASS]} ({type(error).__name__}: {error})") from error


def written_generator(generator: ContextGenerator) -> dict[str, Any]:
    """Return a context generator as JSON.

    Raises:
        UnwritableError: It would not come back as it is.
    """
    try:
        written = generator.config()
        again = resolve_generator(**written)
    except Exception as error:
        raise UnwritableError(type(generator).__name__) from error
    if not is_plain(written) or again is None or (again.name, again.version) != (generator.name, generator.version):
        raise UnwritableError(type(generator).__name__)
    return dict(written)


def written_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a context generator as JSON, a prompt as its text, and the names of those that are none.

    Keys and stores are neither: a key belongs into the environment, and a store is given or is the index's own.
    """
    written, unwritten = {}, []
    for name, value in options.items():
        plain = value.template if isinstance(value, PromptTemplate) else value
        if name in ("api_key", "cache"):
            continue
        if is_plain(plain):
            written[name] = without_credentials(plain) if isinstance(plain, str) and name == "llm" else plain
        else:
            unwritten.append(name)
    return written, unwritten


def read_options(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a context generator from JSON."""
    return {
        name: PromptTemplate(value) if name == "prompt" and isinstance(value, str) else value
        for name, value in written.items()
    }


def is_plain(value: object) -> bool:
    """Return whether JSON gives a value back as it was."""
    try:
        return bool(json.loads(json.dumps(value)) == (list(value) if isinstance(value, tuple) else value))
    except (TypeError, ValueError):
        return False


def safe_choices(choices: Choices) -> Choices:
    """Return what an index may say that is not known to be this user's: what a folder may say, too."""
    safe = Choices()
    for name, value in choices.items():
        if name in ("chunks", "files") and isinstance(value, dict):
            kept = {key: one for key, one in value.items() if may_say(f"{name}.{key}", one)}
            safe[name] = kept  # type: ignore[literal-required]  # one of Choices' names
        elif name in ("embed_model", "context", "show_context_to_llm") and may_say(name, value):
            safe[name] = value  # type: ignore[literal-required]
    return safe


def trusted_choices(state: IndexState, root: Path) -> tuple[Choices, list[str]]:
    """Return which choices of an index count, and the names of those that do not, as only its owner may say them.

    Args:
        state: Of the index.
        root: The folder of the documents.
    """
    safe = safe_choices(state.choices)
    asked = [name for name, value in state.choices.items() if safe.get(name) != value]
    return (state.choices, []) if not asked or is_own(state, root) else (safe, asked)


def is_own(state: IndexState, root: Path) -> bool:
    """Return whether an index's settings are this user's, or the user trusts the folder with them."""
    said = _said_by(state)
    return is_sealed(said, state.seal) or is_trusted(root, digest_of(said))


def sealed(state: IndexState, storage: Path) -> IndexState:
    """Return a state with this user's seal, where it says anything that needs one."""
    says = safe_choices(state.choices) != state.choices
    elsewhere = storage != Path(state.folder) / DEFAULT_NAME  # then it says of which folder it is
    return replace(state, seal=seal_of(_said_by(state)) if says or elsewhere else "")


def digest_of_choices(state: IndexState) -> str:
    """Return the hash by which the user trusts what an index says."""
    return digest_of(_said_by(state))


def _said_by(state: IndexState) -> list[Any]:
    return [state.folder, state.choices, state.unremembered]
