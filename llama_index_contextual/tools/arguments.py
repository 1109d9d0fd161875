"""The parameters of the tools: plain types with bounds and descriptions, for any kind of agent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from llama_index_contextual.retrievers.query import note_filters
from llama_index_contextual.utils.errors import SettingError

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters
    from pydantic_core import ErrorDetails
    from typing_extensions import Self

_MAX_TEXT = 2000  # characters; embedding 100,000 would take a minute
MAX_RESULTS = 50
_MAX_ITEMS = 8
_MAX_SHOWN = 60  # characters of an invalid value in a message
_SHOULD = re.compile(r"^\w+ should ")  # how messages of pydantic begin


def _as_list(value: object) -> object:
    """Wrap a text in a list, and remove the empty items of a list."""
    if isinstance(value, list):
        return [item for item in value if item is not None and item != ""]
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(max_length=_MAX_TEXT)]
Texts = Annotated[list[Text], BeforeValidator(_as_list), Field(max_length=_MAX_ITEMS)]
Count = Annotated[int, Field(ge=1, le=MAX_RESULTS)]


class Arguments(BaseModel):
    """The arguments of a tool.

    Many clients send None or "" for a parameter that is not set, so both mean the default.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {
            name: value
            for name, value in values.items()
            if name not in optional or (value is not None and value != "")
        }

    @classmethod
    def checked(cls, tool: str, values: Mapping[str, Any]) -> Self:
        """Return the validated arguments of a call.

        Raises:
            SettingError: An argument is missing, unknown or invalid.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            [first, *_] = error.errors(include_url=False)
            raise SettingError(_error_message(tool, first, [*cls.model_fields])) from error

    @classmethod
    def schema_without_titles(cls) -> dict[str, Any]:
        """Return the JSON schema of the parameters, without titles that only repeat their names."""
        schema = cls.model_json_schema()
        for parameter in schema.get("properties", {}).values():
            parameter.pop("title", None)
        return {
            "type": "object",
            "properties": schema.get("properties", {}),
            "required": schema.get("required", []),
        }


def _error_message(tool: str, details: ErrorDetails, names: Sequence[str]) -> str:
    """Return a sentence that says what is wrong with an argument."""
    name = str(details["loc"][0]) if details["loc"] else "arguments"
    if details["type"] == "missing":
        return f"`{tool}` needs `{name}`."
    if details["type"] == "extra_forbidden":
        known = ", ".join(names)
        return f"`{tool}` has no parameter `{name}`. Its parameters are: {known}."
    value = repr(details["input"])
    shown = value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}…"
    return f"`{name}` of `{tool}` {_SHOULD.sub('must ', details['msg'])} (got {shown})."


class Message(Arguments):
    """The arguments of ``memory_context``."""

    message: str = Field(description="The user's message, as written.")
    format: Literal["markdown", "json"] = Field(
        "markdown", description="json returns the entries, the queries and applicable."
    )


class Filters(Arguments):
    """The parameters that narrow a search to some notes."""

    path: Text = Field("", description="Only notes with this in their path: people/.")
    tag: Text = Field("", description="Only notes with this tag or a tag below it.")
    since: Text = Field("", description="Only dated notes from this day: 2026-04-09, last week.")
    until: Text = Field("", description="Only dated notes up to this day.")
    where: Texts = Field([], description="Front matter conditions: status=open, rating>=4.")

    @property
    def filters(self) -> MetadataFilters | None:
        """Return the LlamaIndex metadata filters. None means that no filter is set.

        Raises:
            SettingError: A day or a condition cannot be parsed.
        """
        return note_filters(
            path=self.path, tag=self.tag, since=self.since, until=self.until, where=self.where
        )


class Retrieval(Filters):
    """The arguments of ``retrieve``."""

    query: Text = Field("", description="Words, a name or a question.")
    queries: Texts = Field([], description="Several wordings, in place of query.")
    max_results: Count = Field(5, description="Maximum number of hits.")
    per_file: int = Field(
        2, description="Maximum per note; 0 means no limit.", ge=0, le=MAX_RESULTS
    )

    @property
    def wordings(self) -> list[str]:
        """Return the queries to answer, in order.

        Raises:
            SettingError: All queries are empty.
        """
        wordings = [text for text in (self.query, *self.queries) if text.strip()]
        if not wordings:
            raise SettingError("`query` is empty. Pass what to look for.")
        return wordings


class Grep(Filters):
    """The arguments of ``grep``."""

    pattern: Annotated[str, Field(min_length=1, max_length=_MAX_TEXT)] = Field(
        description="The exact characters. Case-sensitive if it has a capital."
    )
    regex: bool = Field(default=False, description="Read the pattern as a regular expression.")
    max_results: Count = Field(20, description="Maximum number of lines.")
    per_file: int = Field(
        3, description="Maximum per note; 0 means no limit.", ge=0, le=MAX_RESULTS
    )


class Reading(Arguments):
    """The arguments of ``read``."""

    path: Annotated[str, Field(min_length=1, max_length=_MAX_TEXT)] = Field(
        description="A citation or a name: a.md#L3-L9, a.pdf#page=4, [[Name]], a.md."
    )
    from_line: int = Field(
        1, description="First line, from 1, if the path names no lines.", ge=1, le=10**9
    )
    lines: int = Field(0, description="Number of lines. Default: as many as fit.", ge=0, le=2000)


class Listing(Arguments):
    """The arguments of ``list``."""

    path: Text = Field("", description="A folder or the start of a path; empty for all.")
