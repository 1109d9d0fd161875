"""Give hits their surroundings: adjacent chunks, or the whole section, as one citation where they touch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from llama_index.core.schema import BaseNode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from llama_index_contextual.errors import SettingError, whole
from llama_index_contextual.metadata import (
    END_LINE,
    HEADER_PATH,
    START_LINE,
    hide_encoded_bytes,
    prefixed_key,
    value_of,
)
from llama_index_contextual.text import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Load = Callable[[Iterable[str]], dict[str, BaseNode]]

Reach = int | Literal["section"]

_FARTHEST: Final = 50  # chunks on each side of a hit, however long its section is


def checked_reach(expand: object) -> Reach:
    """Return how much surrounds a hit; raise a SettingError for anything but a number or "section"."""
    if expand == "section":
        return "section"
    try:
        return whole("expand", expand, least=0)
    except SettingError:
        raise SettingError(
            f"expand={expand!r} cannot work. Cure: a number of chunks, 0 for none, or 'section'."
        ) from None


def expand_hits(hits: Sequence[NodeWithScore], reach: Reach, load: Load) -> list[NodeWithScore]:
    """Give each hit its surroundings; hits whose surroundings touch become one, at the better one's place.

    Args:
        hits: Best first. Nodes without neighbours (``NEXT``, ``PREVIOUS``) or without offsets stay as they are.
        reach: So many chunks on each side, or ``"section"``: as far as the header path is the same or below.
        load: Gives nodes by id.
    """
    nodes: dict[str, BaseNode] = {hit.node.node_id: hit.node for hit in hits}
    runs = [_run(hit.node, reach, _remembering(load, nodes)) for hit in hits]
    expanded: list[NodeWithScore] = []
    taken: set[int] = set()
    for number, (hit, run) in enumerate(zip(hits, runs, strict=True)):
        if number in taken:
            continue
        members = dict(run)
        grown = True
        while grown:  # two hits may touch through a third
            grown = False
            for other in range(number + 1, len(hits)):
                if other not in taken and _touch(members.values(), runs[other].values()):
                    members |= runs[other]
                    taken.add(other)
                    grown = True
        expanded.append(NodeWithScore(node=merge_nodes(hit.node, list(members.values())), score=hit.score))
    return expanded


def merge_nodes(best: BaseNode, members: Sequence[BaseNode]) -> BaseNode:
    """Return one node for adjacent chunks: overlaps count once, gaps are white space and become line breaks and spaces.

    It keeps the id and the metadata of ``best``, with the lines and offsets of the whole.
    """
    parts = sorted((part for part in members if _placed(part)), key=lambda part: (_start(part), _end(part)))
    if len(parts) < 2:  # noqa: PLR2004
        return best
    text, last = parts[0].get_content(), parts[0]
    for part in parts[1:]:
        text += _gap(last, part) + part.get_content()[max(0, _end(last) - _start(part)) :]
        last = max(last, part, key=_end)
    end = _end(last)
    metadata = dict(best.metadata)
    for key, outermost in ((START_LINE, min), (END_LINE, max)):
        if key in metadata:
            name = prefixed_key(key) if prefixed_key(key) in metadata else key
            metadata[name] = outermost(value_of(part.metadata, key) for part in parts)
    relationships = dict(best.relationships)
    for part, side in ((parts[0], NodeRelationship.PREVIOUS), (parts[-1], NodeRelationship.NEXT)):
        if side in part.relationships:
            relationships[side] = part.relationships[side]
    changes = {"metadata": metadata, "relationships": relationships, "start_char_idx": _start(parts[0])}
    merged = best.model_copy(update={**changes, "end_char_idx": end})
    merged.set_content(text)
    if (shown := readable(text)) != text and isinstance(merged, TextNode):
        hide_encoded_bytes(merged, shown)
    return merged


def _gap(before: BaseNode, after: BaseNode) -> str:
    """Return the white space between two chunks, which no chunk keeps: its length and its line breaks."""
    length = max(0, _start(after) - _end(before))
    first, last = value_of(after.metadata, START_LINE), value_of(before.metadata, END_LINE)
    lines = length if first is None or last is None else int(first) - int(last)
    return ("\n" * min(length, lines)).ljust(length)


def _run(node: BaseNode, reach: Reach, load: Callable[[str], BaseNode | None]) -> dict[str, BaseNode]:
    """Return a node and its neighbours by id, itself first."""
    run = {node.node_id: node}
    if not _placed(node):
        return run
    for side in (NodeRelationship.PREVIOUS, NodeRelationship.NEXT):
        current = node
        for _ in range(_FARTHEST if reach == "section" else int(reach)):
            related = current.relationships.get(side)
            neighbour = load(related.node_id) if isinstance(related, RelatedNodeInfo) else None
            if neighbour is None or not _placed(neighbour) or neighbour.node_id in run:
                break
            if reach == "section" and not _same_section(node, neighbour):
                break
            run[neighbour.node_id] = current = neighbour
    return run


def _remembering(load: Load, known: dict[str, BaseNode]) -> Callable[[str], BaseNode | None]:
    def one(node_id: str) -> BaseNode | None:
        if node_id not in known:
            known.update(load([node_id]))
        return known.get(node_id)

    return one


def _same_section(node: BaseNode, other: BaseNode) -> bool:
    path, other_path = (str(value_of(member.metadata, HEADER_PATH) or "") for member in (node, other))
    return other_path == path or bool(path and other_path.startswith(f"{path} > "))


def _touch(some: Iterable[BaseNode], others: Iterable[BaseNode]) -> bool:
    """Return whether two runs share a chunk or have adjacent chunks."""
    nodes, sides = list(others), (NodeRelationship.PREVIOUS, NodeRelationship.NEXT)
    related = [node.relationships.get(side) for node in nodes for side in sides]
    ids = {one.node_id for one in (*nodes, *related) if isinstance(one, BaseNode | RelatedNodeInfo)}
    return any(node.node_id in ids for node in some)


def _placed(node: BaseNode) -> bool:
    return isinstance(node, TextNode) and node.start_char_idx is not None and node.end_char_idx is not None


def _start(node: BaseNode) -> int:
    return int(node.start_char_idx)  # type: ignore[attr-defined]  # only asked of placed nodes


def _end(node: BaseNode) -> int:
    return int(node.end_char_idx)  # type: ignore[attr-defined]
