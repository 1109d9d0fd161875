"""What a document is, across runs and machines, and what its nodes are called."""

from __future__ import annotations

import re
import warnings
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.node_parser.node_utils import default_id_func

from llama_index_contextual import metadata
from llama_index_contextual.errors import ContextualWarning, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.schema import BaseNode

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_RANDOM_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_MARKDOWN_SUFFIXES: Final = frozenset({"", ".md", ".markdown", ".mdx", ".mdown", ".mkd", ".qmd", ".rmd", ".mdc"})


def path_of(document: BaseNode) -> str:
    """The path that a document's metadata names, in POSIX form; empty for none."""
    value = document.metadata.get(metadata.PATH) or document.metadata.get("file_path") or ""
    return str(value).replace("\\", "/")


def is_markdown(path: str) -> bool:
    """Whether a file of this name holds Markdown, as a document without a name does."""
    return PurePosixPath(path).suffix.lower() in _MARKDOWN_SUFFIXES


def identity_of(document: BaseNode, digest: str) -> str:
    """An id that the user set, else the path, else the content: LlamaIndex's random ids change with every load."""
    if not _RANDOM_ID.fullmatch(document.node_id):
        return document.node_id
    return path_of(document) or digest


def node_id_of(identity: str, chunk: str, ordinal: int) -> str:
    """A hash in the form of a UUID, which Qdrant insists on."""
    digest = blake2b(f"{identity}\0{ordinal}\0{chunk}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def without_surrogates(text: str, name: str) -> str:
    """A text with U+FFFD for each lone surrogate, and a warning that names it: parser and stores fail on them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        warnings.warn(
            f"{name} holds lone surrogates, which are no text; each became U+FFFD", ContextualWarning, stacklevel=2
        )
        return _SURROGATE.sub("\ufffd", text)
    return text


def hash_id(i: int, doc: BaseNode) -> str:
    """Marks the default: ids are made from each chunk's text, which an ``id_func`` is not shown.

    Whoever calls it as a function gets what LlamaIndex's default gives.
    """
    return default_id_func(i, doc)


def given_id_func(given: Any) -> Callable[[int, BaseNode], str]:
    """The caller's function; ours for LlamaIndex's default (random ids) and for a name read back by ``from_dict``."""
    if given is None or given is default_id_func:
        return hash_id
    if callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, dict) and given.get("id_func_name") in {hash_id.__name__, default_id_func.__name__}:
        return hash_id
    raise SettingError(f"id_func={given!r} cannot be read back. Cure: pass the function again as id_func=")
