"""The tools of the MCP server: what agents may ask, and the answers as text and as data."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from llama_index_contextual.errors import ContextualError, SettingError
from llama_index_contextual.memory import MemoryDigest, note_filters
from llama_index_contextual.notes import By, Listing, Part, Related, part_of  # the SDK reads the annotations
from llama_index_contextual.notes import related as find_related

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp.server.mcpserver import MCPServer

    from llama_index_contextual.notes import Notes

MAX_RESULTS: Final = 50
MAX_QUERY: Final = 2000  # characters; a hundred thousand would keep the embedding busy for a minute
_MAX_ADDED: Final = 16_384
_MAX_FILE: Final = 1_000_000
_READS: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_ADDS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_CHANGES: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)

# What a tool takes

Format = Literal["markdown", "json"]
Message = Annotated[str, Field(description="The user's message, as written.")]
Style = Annotated[Format, Field(description="json adds scores, headings, context, reasons and queries.")]
QueryText = Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
SearchQuery = Annotated[str, Field(description="What to look for.", max_length=MAX_QUERY)]


class OneQuery(TypedDict):
    """One of several queries."""

    text: QueryText
    by: NotRequired[By]


Queries = Annotated[
    list[QueryText | OneQuery],
    Field(description='Instead: several at once, each a text or {"text": …, "by": "words"|"meaning"}.', max_length=8),
]
Count = Annotated[int, Field(description="Most hits.", ge=1, le=MAX_RESULTS)]
In = Annotated[str, Field(description="Only this collection, if status names some.")]
PathPart = Annotated[str, Field(description="Only notes with this in their path, e.g. people/.")]
TagPart = Annotated[str, Field(description="Only notes with this tag or one below it.")]
Where = Annotated[list[str], Field(description="Front matter: status=open, rating>=4.", max_length=8)]
Day = Annotated[str, Field(description="Only dated notes, from or to this day: 2026-04-09, last week.")]
NotePath = Annotated[str, Field(description="A path or citation: a.md, a.md#L3-L9, a.pdf#page=4, [[Name]].")]
FirstLine = Annotated[int, Field(description="First line, from 1.", ge=1)]
Lines = Annotated[int, Field(description="Most lines.", ge=1, le=2000)]
Glob = Annotated[str, Field(description="E.g. memory/2026-04-*.md", min_length=1, max_length=500)]
Below = Annotated[str, Field(description="A folder or note; empty for all.")]
Quoted = Annotated[str, Field(description="A passage of the note, exactly as get shows it.", min_length=1)]
Text = Annotated[str, Field(max_length=_MAX_FILE)]
Command = Literal["view", "create", "str_replace", "insert", "delete", "rename"]
Added = Annotated[str, Field(description="Markdown, a fact or two.", min_length=1, max_length=_MAX_ADDED)]

# What a tool gives beside its text


class HitData(TypedDict):
    """One hit of a digest or a search."""

    citation: str
    path: str
    start_line: int | None
    end_line: int | None
    page: str
    date: str | None
    header_path: str
    context: str
    snippet: str
    score: float
    reasons: list[str]


class DigestData(TypedDict):
    """A digest or the hits of a search."""

    applicable: bool
    reason: str
    entries: list[HitData]
    notes: list[str]
    left_out: int


class NoteData(TypedDict):
    """A note."""

    path: str
    text: str


class NotesData(TypedDict):
    """Several notes, and how many there are."""

    notes: list[NoteData]
    total: int


class StatusData(TypedDict):
    """What is indexed, and what is not."""

    folder: str
    collections: dict[str, str]
    documents: int
    chunks: int
    failed: int
    reasons: dict[str, str]
    complete: bool
    freshness: dict[str, Any]


def add_questions(server: MCPServer[None], notes: Notes) -> None:
    """Add the tools that search."""

    @server.tool(title="What the notes say", annotations=_READS)
    async def memory_context(
        message: Message,
        format: Style = "markdown",  # noqa: A002
    ) -> Annotated[CallToolResult, DigestData]:
        """What the user's notes say about a message. Call it at the start of every turn."""
        with _told():
            return _digest(await notes.context(message), format)

    @server.tool(title="Search the notes", annotations=_READS)
    async def memory_search(
        query: SearchQuery = "",
        queries: Queries | None = None,
        max_results: Count = 10,
        collection: In = "",
        path: PathPart = "",
        tag: TagPart = "",
        since: Day = "",
        until: Day = "",
        where: Where | None = None,
        format: Style = "markdown",  # noqa: A002
    ) -> Annotated[CallToolResult, DigestData]:
        """Search the user's notes for something precise: words, names, tags, days; better than a whole message."""
        with _told():
            named = [collection] if collection else []
            notes.index.settings.folders.check(named)
            filters = note_filters(path=path, tag=tag, since=since, until=until, collections=named, where=where or ())
            several = [OneQuery(text=text) if isinstance(text, str) else text for text in queries or ()]
            first = [OneQuery(text=query)] if query.strip() else []
            wanted: list[tuple[str, By]] = [(each["text"], each.get("by", "both")) for each in (*first, *several)]
            if not wanted:
                raise SettingError("is empty. Cure: say what to look for", query=query)
            return _digest(await notes.fresh(lambda: notes.search(wanted, max_results, filters)), format)


def add_reading(server: MCPServer[None], notes: Notes) -> None:
    """Add the tools and the resource that show notes as they are."""

    @server.tool(title="Read a note", annotations=_READS)
    async def get(path: NotePath, from_line: FirstLine = 1, lines: Lines = 200) -> Annotated[CallToolResult, Part]:
        """Open and read one note, some lines or a page of it: whatever another tool has cited."""
        return await _shown(part_of, notes.index, path, from_line, lines)

    @server.tool(title="Read several notes", annotations=_READS)
    async def multi_get(glob: Glob) -> Annotated[CallToolResult, NotesData]:
        """Read all notes whose path matches a pattern, one block each, its path first."""
        with _told():
            parts, total = await asyncio.to_thread(notes.several, glob)
            blocks = [f"{path}\n\n{text}" for path, text in parts]
            if len(parts) < total:
                blocks.append(f"({len(parts)} of {total} notes; for the others: get)")
            return _answer(blocks, {"notes": [{"path": path, "text": text} for path, text in parts], "total": total})

    @server.tool(title="Links of a note", annotations=_READS)
    async def related(path: str) -> Annotated[CallToolResult, Related]:
        """A note's links, the links to it, and the notes that share its front matter."""
        return await _shown(find_related, notes.index, path)

    @server.tool("list", title="List the notes", annotations=_READS)
    async def list_notes(path: Below = "") -> Annotated[CallToolResult, Listing]:
        """List which notes there are, all or in a folder: their paths."""
        return await _shown(notes.listing, path)

    @server.tool(title="State of the index", annotations=_READS)
    async def status() -> Annotated[CallToolResult, StatusData]:
        """Whether the index is up to date: how many notes it holds, and what is not indexed yet."""
        with _told():
            data = await notes.status()
            return _answer(json.dumps(data, ensure_ascii=False, indent=2), data)

    @server.resource("note:///{+path}", mime_type="text/markdown")
    async def note(path: str) -> str:
        """A whole note, by the path that a citation shows before ``#L``."""
        text = await asyncio.to_thread(notes.index.read, path)
        if text is None:
            raise ResourceNotFoundError(f"There is no note {path!r}.")
        return text


def add_writing(server: MCPServer[None], notes: Notes) -> None:
    """Add the tools that write."""

    async def write(what: Callable[[], str]) -> str:
        with _told():
            answer = await asyncio.to_thread(what)
            notes.keeper.start()
            return answer

    @server.tool(title="Add to today's note", annotations=_ADDS)
    async def memory_add(text: Added) -> str:
        """Remember something new that the user wants kept: add it to the note of today."""
        return await write(lambda: notes.add(text, datetime.now().astimezone()))

    @server.tool(title="Correct a note", annotations=_CHANGES)
    async def memory_edit(path: NotePath, old_text: Quoted, new_text: Text) -> str:
        """Correct a note: replace a passage that stands in it exactly once."""
        return await write(lambda: notes.edit(path, old_text, new_text))

    @server.tool(title="Notes as files", annotations=_CHANGES)
    async def memory(
        command: Command,
        path: str = "",
        view_range: list[int] | None = None,
        file_text: Text | None = None,
        old_str: Text | None = None,
        new_str: Text | None = None,
        insert_line: int | None = None,
        insert_text: Text | None = None,
        old_path: str = "",
        new_path: str = "",
    ) -> str:
        """View, create, change, rename and delete notes as files below /memories: Anthropic's memory tool."""
        fields = {
            "command": command, "path": path, "view_range": view_range, "file_text": file_text, "old_str": old_str,
            "new_str": new_str, "insert_line": insert_line, "insert_text": insert_text,
            "old_path": old_path or path, "new_path": new_path,
        }  # fmt: skip
        return await write(lambda: notes.commands.call(fields))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell the client what is wrong and its cure; of other exceptions the SDK says only that there was one."""
    try:
        yield
    except ContextualError as error:
        raise ToolError(str(error)) from error


async def _shown(read: Callable[..., Part | Related | Listing], *arguments: object) -> CallToolResult:
    """Return what is read, in a thread, as text and as data."""
    with _told():
        result = await asyncio.to_thread(read, *arguments)
        return _answer(str(result), asdict(result))


def _digest(digest: MemoryDigest, style: Format) -> CallToolResult:
    data = digest.to_dict()
    del data["markdown"]
    return _answer(digest.to_json() if style == "json" else digest.markdown, data)


def _answer(text: str | list[str], data: dict[str, Any]) -> CallToolResult:
    texts = [text] if isinstance(text, str) else text
    return CallToolResult(content=[TextContent(type="text", text=block) for block in texts], structured_content=data)
