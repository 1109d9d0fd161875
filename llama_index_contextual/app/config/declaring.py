"""How a setting is declared: its name, type, limits, default and meaning, and who may say it.

``keys`` declares all of them. The loader, the command line's options, the commented file and the page of the
documentation are made from :data:`SETTINGS` there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from llama_index_contextual.errors import Checked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo
    from typing_extensions import Self

MOST_HITS: Final = 100_000


def as_list(value: Any) -> Any:
    """Read one text as a list: an environment variable has no other way to hold one."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _as_number(value: Any) -> Any:
    if isinstance(value, bool):  # which pydantic takes for 0 or 1
        raise ValueError("input should be a number")  # noqa: TRY004  pydantic knows no other
    return value.item() if hasattr(value, "item") else value  # numpy's


_Number = BeforeValidator(_as_number)
# No setting that works is larger; a number of hundreds of digits would fail somewhere else, and perhaps in silence.
Hits = Annotated[int, _Number, Field(ge=1, le=MOST_HITS)]
Processes = Annotated[int, _Number, Field(ge=1, le=10_000)]
Calls = Annotated[int, _Number, Field(ge=1, le=1000)]
Size = Annotated[int, _Number, Field(ge=1, le=10**9)]  # in tokens
Limit = Annotated[int, _Number, Field(ge=0, le=10**15)]
Share = Annotated[float, _Number, Field(ge=0, le=1)]
Days = Annotated[float, _Number, Field(gt=0, le=1_000_000)]
Seconds = Annotated[float, _Number, Field(gt=0, le=86_400)]
Gain = Annotated[float, _Number, Field(ge=0, le=1000)]
Name = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], BeforeValidator(as_list)]


def setting(meaning: str, default: Any = None, **declared: Any) -> Any:
    """Declare a setting; the field has its name and its type in Python.

    Args:
        meaning: One sentence, with the unit.
        default: What holds where nobody says it; None where it is computed.
        **declared: The attributes of :class:`Setting`.
    """
    return Field(default, description=meaning, json_schema_extra=declared)


class Section(Checked, BaseModel):
    """A table of the file: the values that somebody said, and defaults.

    Raises:
        SettingError: A value cannot work.
    """

    model_config = ConfigDict(frozen=True)
    folder_may_say: ClassVar[bool] = False
    """What holds for settings that do not say whether they are ``safe``."""

    def explicit(self) -> dict[str, Any]:
        """Return the values that somebody said."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    def changed(self, **values: Any) -> Self:
        """Return the same with other values, which are checked.

        Raises:
            SettingError: A value cannot work.
        """
        return type(self)(**{**self.explicit(), **values}) if values else self


@dataclass(frozen=True)
class Setting:
    """What is declared of a setting.

    Attributes:
        key: Its name, after that of its table where it is in one: ``"chunks.chunk_size"``.
        info: Its type, default and meaning.
        computed: The default in words, where it is computed.
        example: A value for the commented file, where the default is none.
        flags: The option of the command line that sets it, with its short form or its negation: ``"--top-k -k"``,
            ``"--recency/--no-recency"``.
        safe: Whether a folder may say it that nobody trusts, or which values it may say. What names a server, a model
            on one, a store, a path, a secret, or more files than are read by default is not safe.
    """

    key: str
    info: FieldInfo
    computed: str = ""
    example: Any = None
    flags: str = ""
    safe: bool | tuple[str, ...] = False

    @property
    def option(self) -> str:
        """The option of the command line; "" where there is none."""
        return self.flags.split(" ")[0].partition("/")[0]

    @property
    def name(self) -> str:
        """The name without that of its table."""
        return self.key.rpartition(".")[2]

    @property
    def table(self) -> str:
        """The table that it is in; "" where it is in none."""
        return self.key.rpartition(".")[0]

    @property
    def is_table(self) -> bool:
        """Whether it is a table of names that the user gives."""
        return isinstance(self.info.default, dict)

    @property
    def default(self) -> Any:
        """The default, in parentheses and in words where it is computed."""
        return f"({self.computed})" if self.computed else self.info.default

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """What reads and checks a value."""
        kind: Any = Annotated[self.info.annotation, self.info]
        return TypeAdapter(kind)

    def plain(self, value: Any) -> Any:
        """Return a value as a file says it."""
        return self.adapter.dump_python(value, mode="json", by_alias=True, exclude_defaults=True)


def settings_of(section: type[Section], table: str = "") -> Iterator[Setting]:
    """Yield the settings of a tree of sections, in the order of the file."""
    for name, info in section.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from settings_of(info.annotation, f"{name}.")
        else:
            declared: Any = info.json_schema_extra
            yield Setting(f"{table}{name}", info, **{"safe": section.folder_may_say, **declared})
