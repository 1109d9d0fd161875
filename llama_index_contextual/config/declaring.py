"""How a setting is declared: its meaning and limits, what the command line and Python call it, and who may say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

# No setting that works is larger; a number of hundreds of digits would fail somewhere else, and perhaps in silence.
MOST_HITS: Final = 100_000
MOST_TOKENS: Final = 1_000_000_000
MOST_DAYS: Final = 1_000_000
MOST_PROCESSES: Final = 10_000


def as_list(value: Any) -> Any:
    """Read one text as a list: an environment variable has no other way to hold one."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _mode(value: Any) -> Any:
    return "headings" if value == "headers" else value


Texts = Annotated[tuple[str, ...], BeforeValidator(as_list)]
Mode = Annotated[Literal["off", "headings", "pattern", "llm"], BeforeValidator(_mode)]


def setting(
    meaning: str,
    default: Any = None,
    *,
    safe: bool | tuple[str, ...] = False,
    python: str = "",
    option: str = "",
    example: Any = None,
    **limits: Any,
) -> Any:
    """Declare a key.

    Args:
        meaning: One sentence for the reference and for the commented file.
        default: What holds where nobody says it. Text in parentheses describes a default that is computed.
        safe: Whether a folder may say it that nobody trusts, or which values it may say. What names a server, a model
            on one, a store, a path, a secret, or more files than are read by default is not safe.
        python: The name that Python gives it, if another.
        option: The option of the command line that sets it.
        example: A value for the commented file, where the default is none.
        **limits: Of pydantic, such as ``ge=1``.
    """
    shown = {"default": default, "python": python, "option": option, "example": example, "safe": safe}
    return Field(None, description=meaning, json_schema_extra=shown, **limits)


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def given(self) -> dict[str, Any]:
        """Return the values that were said, by their names in Python."""
        fields = type(self).model_fields
        said = {key: getattr(self, key) for key in fields if not isinstance(getattr(self, key), Section)}
        return {shown_of(fields[key])["python"] or key: value for key, value in said.items() if value is not None}


def shown_of(info: FieldInfo) -> dict[str, Any]:
    """Return what :func:`setting` was told of a key, besides its meaning."""
    extra = info.json_schema_extra
    return {"default": {}, "python": "", "option": "", "example": None, **(extra if isinstance(extra, dict) else {})}
