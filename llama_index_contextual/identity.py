"""What documents and nodes are called across runs and machines, and where a node stands that is itself a chunk."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.node_parser.node_utils import default_id_func
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import metadata
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import BaseNode

_RANDOM_ID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}")


def short_hash(value: object, *, escaped: bool = True) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a value's JSON, the same on every machine.

    Args:
        value: Anything; what JSON cannot show counts as its ``str``.
        escaped: Whether the JSON is ASCII. Hashes that an index has stored were made in one of the two ways.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=escaped, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def is_random_id(identity: str) -> bool:
    """Return whether an id is a random UUID, as LlamaIndex gives one to each document that it loads."""
    return _RANDOM_ID.fullmatch(identity.lower()) is not None


def identity_of(document: BaseNode, digest: str) -> str:
    """Return a document's lasting identity: the id that the user set, else its path, else a hash of its content.

    Args:
        document: A document, or a node that is cut again.
        digest: The hash of its content.
    """
    if not is_random_id(document.node_id):
        return document.node_id
    return metadata.path_of(document.metadata) or digest


def node_id_of(identity: str, chunk: str, ordinal: int) -> str:
    """Return the id of a chunk: a hash in the form of a UUID, which Qdrant insists on.

    Args:
        identity: Of its document.
        chunk: Its text.
        ordinal: How many chunks of the document with the same text stand before it.
    """
    content = f"{identity}\0{ordinal}\0{chunk}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def hash_id(i: int, doc: BaseNode) -> str:
    """Mark the default of a parser's ``id_func``: ids are made from each chunk's text, which no ``id_func`` is shown.

    Whoever calls it as a function gets what LlamaIndex's default gives.
    """
    return default_id_func(i, doc)


def given_id_func(given: Any) -> Callable[[int, BaseNode], str]:
    """Return the caller's function, or ours for LlamaIndex's default (random ids) and a name that ``from_dict`` reads.

    Raises:
        SettingError: It is the name of another function, which cannot be read back.
    """
    if given is None or given is default_id_func:
        return hash_id
    if callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, dict) and given.get("id_func_name") in {hash_id.__name__, default_id_func.__name__}:
        return hash_id
    raise SettingError(f"id_func={given!r} cannot be read back. Cure: pass the function again as id_func=")


class Origin(NamedTuple):
    """Where a node stands in its document: what a parser adds to the places that it finds inside the node.

    Attributes:
        offset: Where the node starts in its document.
        line: On which line, 1-based; 0 where nobody has said.
        headings: Titles of the headings that it stands under, outermost first.
        level: Level of the innermost of them, 0 for none or unknown.
    """

    offset: int = 0
    line: int = 1
    headings: tuple[str, ...] = ()
    level: int = 0

    def path(self, inner: Sequence[str]) -> tuple[str, ...]:
        """Return the headings of a chunk that has some of its own; a heading that both name stands there once."""
        outer = self.headings
        for shared in range(min(len(outer), len(inner)), 0, -1):
            if outer[-shared:] == tuple(inner[:shared]):
                return (*outer, *inner[shared:])
        return (*outer, *inner)


def origin_of(node: BaseNode) -> Origin:
    """Return where a node stands in the document that it was cut from: at the beginning, if it is a document.

    LlamaIndex's parsers write down at which character a chunk starts, but not on which line, and nothing can be read
    but its own text. So without a ``start_line`` the line is unknown, except at the beginning.
    """
    if node.source_node is None or node.source_node.node_id == node.node_id:
        return Origin()
    headings = tuple(metadata.heading_titles(node.metadata))
    level = _positive(node.metadata.get(metadata.HEADING_LEVEL), 0)
    start = node.start_char_idx if isinstance(node, TextNode) else None
    end = node.end_char_idx if isinstance(node, TextNode) else None
    if start is None or end is None or end - start != len(node.get_content(metadata_mode=MetadataMode.NONE)):
        return Origin(headings=headings, level=level)  # changed since, or never placed
    return Origin(start, _positive(node.metadata.get(metadata.START_LINE), 0 if start else 1), headings, level)


def _positive(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise
