"""The tools: name, description, parameters and function of each.

All front ends offer the tools of this one list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from llama_index_contextual.memory.context import MemoryContext, gate_digest
from llama_index_contextual.memory.digest import (
    HEADER,
    NOTHING,
    MemoryDigest,
    MemoryEntry,
    shown_path,
)
from llama_index_contextual.memory.snippets import with_snippets
from llama_index_contextual.retrievers.terms import query_groups
from llama_index_contextual.tools.answer import MAX_CHARS, Answer, fitting
from llama_index_contextual.tools.arguments import (
    Arguments,
    Grep,
    Listing,
    Message,
    Reading,
    Retrieval,
)
from llama_index_contextual.tools.grep import grep
from llama_index_contextual.tools.listing import listing
from llama_index_contextual.tools.per_document import limit_per_document
from llama_index_contextual.tools.places import MAX_PART, part_of
from llama_index_contextual.utils.text import counted

if TYPE_CHECKING:
    from llama_index_contextual.tools.notes import Notes

_POOL = 30  # hits to search for at least, so that an answer says how many it does not show
_RESERVED = 200  # characters of an answer for its first and last lines
_CHARS_PER_TOKEN = 4
_MAX_HITS = 12  # more would leave too little text for each
_MAX_DUPLICATES = 3  # further places of the same text
_MAX_DUPLICATE_CHARS = 600  # length of all lines that name further places
_FOUND = "## Found in the notes"
_NOT_FOUND = "(Nothing found.)"


@dataclass
class NoteTools:
    """The functions of the tools, for one set of notes.

    Attributes:
        notes: The documents.
        memory: The search over the documents.
        has_texts: Whether the texts of the documents are available. ``grep``, ``list`` and ``read``
            need them.
        freshness: Returns a text that says how far the index is behind its documents, or "".
        is_empty: Returns whether nothing is indexed yet, so that a search would fail.
    """

    notes: Notes
    memory: MemoryContext
    has_texts: bool = True
    freshness: Callable[[], str] = lambda: ""
    is_empty: Callable[[], bool] = lambda: False

    def memory_context(self, arguments: Message) -> Answer:
        """Return the digest of the notes about a message."""
        message = arguments.message
        digest = gate_digest(message)  # small talk needs neither the documents nor the index
        if digest is None:
            digest = self._fresh(lambda: self.memory.get(message))
        max_chars = max(MAX_CHARS, _CHARS_PER_TOKEN * self.memory.settings.max_tokens)
        digest = digest.fitting(max_chars, arguments.format)
        return Answer(digest.render(arguments.format), _data_of(digest))

    def retrieve(self, arguments: Retrieval) -> Answer:
        """Return the passages that best answer a question."""
        wordings = arguments.wordings
        filters = arguments.filters
        pool = max(arguments.max_results, _POOL)

        def search() -> MemoryDigest:
            digests = [
                self.memory.find(text, max_results=pool, filters=filters) for text in wordings
            ]
            return _combined(digests, wordings, arguments)

        digest = self._fresh(search)
        text = digest.markdown.replace(HEADER, _FOUND, 1).replace(NOTHING, _NOT_FOUND, 1)
        return Answer(text, _data_of(digest))

    def grep(self, arguments: Grep) -> Answer:
        """Return the lines that match a pattern."""
        if self.is_empty():
            return Answer(f"(Nothing is indexed yet. Index: {self.freshness()}.)")
        return self._with_freshness(grep(self.notes, arguments))

    def list(self, arguments: Listing) -> Answer:
        """Return the paths of the notes, and their folders, tags and front matter keys."""
        return self._with_freshness(listing(self.notes, arguments.path))

    def read(self, arguments: Reading) -> Answer:
        """Return a note, or a part of it."""
        is_short = not arguments.lines
        part = part_of(
            self.notes,
            arguments.path,
            arguments.from_line,
            arguments.lines or None,
            MAX_CHARS - _RESERVED if is_short else MAX_PART,
        )
        data = {
            "path": part.path,
            "from_line": part.from_line,
            "to_line": part.to_line,
            "total_lines": part.total_lines,
        }
        if part.is_whole:
            return Answer(part.text, data)
        extent = f"lines {part.from_line} to {part.to_line} of {part.total_lines}"
        if part.is_line_cut and is_short:
            extent += "; read with lines=1 returns more of the line"
        if part.is_cut:
            extent += f". Next: read with path={part.path} from_line={part.to_line + 1}"
        return Answer(f"{part.text}\n\n({extent})", data)

    def _fresh(self, search: Callable[[], MemoryDigest]) -> MemoryDigest:
        """Return the digest of a search, with a note if the index is behind its documents."""
        freshness = self.freshness()
        if self.is_empty() and freshness:
            reason = "nothing is indexed yet"
            empty = MemoryDigest(applicable=True, reason=reason)
            return empty.with_freshness_note(f"{reason}; {freshness}")
        return search().with_freshness_note(freshness)

    def _with_freshness(self, answer: Answer) -> Answer:
        freshness = self.freshness()
        return (
            replace(answer, text=f"{answer.text}\n\n(Index: {freshness}.)") if freshness else answer
        )


def _combined(
    digests: Sequence[MemoryDigest],
    wordings: Sequence[str],
    arguments: Retrieval,
) -> MemoryDigest:
    """Merge the hits of several searches into one digest that fits in a short answer.

    The best hit of each search comes first, then the second of each, and so on.
    """
    entries: dict[str, MemoryEntry] = {}
    for ranked in zip_longest(*(digest.entries for digest in digests)):
        for entry in filter(None, ranked):
            entries.setdefault(entry.id, entry)
    kept = limit_per_document(
        entries.values(), lambda entry: entry.path, arguments.per_file, arguments.max_results
    )
    chosen = kept[:_MAX_HITS]
    notes = [*dict.fromkeys(note for digest in digests for note in digest.notes)]
    notes += _duplicate_notes(chosen)
    groups = [group for text in wordings for group in query_groups(text)]
    available = MAX_CHARS - _RESERVED - sum(map(len, notes))
    shown = with_snippets(chosen, groups, available // _CHARS_PER_TOKEN)
    hidden = len(entries) - len(shown)
    if hidden:
        next_call = _next_call(arguments, len(kept), len(shown))
        notes.append(f"Next: {next_call}; {counted(hidden, 'more hit')}.")
    left_out = sum(digest.left_out for digest in digests) + hidden
    return replace(digests[0], entries=shown, notes=tuple(notes), left_out=left_out)


def _duplicate_notes(entries: Iterable[MemoryEntry]) -> list[str]:
    """Return a line for each hit whose text is also at other places, as many lines as fit."""
    notes = []
    for entry in entries:
        if entry.also_at:
            places = ", ".join(map(shown_path, entry.also_at[:_MAX_DUPLICATES]))
            notes.append(f"The text of {entry.citation} is also at {places}")
    return fitting(notes, _MAX_DUPLICATE_CHARS)


def _next_call(arguments: Retrieval, kept: int, shown: int) -> str:
    """Return a hint on which call returns more hits.

    Args:
        arguments: The arguments of the last call.
        kept: The number of hits within the limits of these arguments.
        shown: The number of hits that fit in the answer.
    """
    if shown < kept or shown == _MAX_HITS:
        return "retrieve with path= or other words, or read a citation"
    if kept < arguments.max_results:
        return "retrieve with per_file=0, or read a citation"
    more = min(2 * arguments.max_results, _MAX_HITS)
    return f"retrieve with max_results={more}, or read a citation"


def _data_of(digest: MemoryDigest) -> dict[str, Any]:
    """Return the details of the hits for programs, such as scores and dates."""
    hits = [
        {
            "citation": entry.citation,
            "score": entry.score,
            "date": entry.date,
            "headings": entry.header_path,
            **({"also_at": list(entry.also_at)} if entry.also_at else {}),
        }
        for entry in digest.entries
    ]
    return {"hits": hits, "left_out": digest.left_out}


@dataclass(frozen=True)
class Tool:
    """A tool as an agent sees it.

    Attributes:
        name: The name that the agent calls.
        title: The name to show to people.
        description: Its purpose, and when to call it.
        arguments: The model of its parameters.
        function: The method that answers a call.
        needs_texts: Whether it reads the texts of the documents.
    """

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    function: Callable[[NoteTools, Any], Answer]
    needs_texts: bool = True

    def call(self, tools: NoteTools, values: Mapping[str, Any]) -> Answer:
        """Check the arguments of a call and answer it.

        Raises:
            SettingError: An argument is missing, unknown or invalid.
            DocumentError: The note does not exist.
        """
        return self.function(tools, self.arguments.checked(self.name, values))


TOOLS = (
    Tool(
        "memory_context",
        "Recall the notes",
        "Return what the user's notes say about a message. Call it with the message at the "
        "start of every turn.",
        Message,
        NoteTools.memory_context,
        needs_texts=False,
    ),
    Tool(
        "retrieve",
        "Search the notes",
        "Search the user's notes by meaning and by words. Returns the best passages with "
        "citations for read.",
        Retrieval,
        NoteTools.retrieve,
        needs_texts=False,
    ),
    Tool(
        "grep",
        "Find exact text",
        "Find every line that contains exact characters: an error code, an identifier, every "
        "mention of a name. Returns lines with their numbers and citations.",
        Grep,
        NoteTools.grep,
    ),
    Tool(
        "read",
        "Read a note",
        "Read a citation of another tool: lines, a page or a section of a note, or all of it.",
        Reading,
        NoteTools.read,
    ),
    Tool(
        "list",
        "List the notes",
        "List the notes, and the folders, tags and front matter keys that can narrow a search.",
        Listing,
        NoteTools.list,
    ),
)
