"""The ZIP archives of XML in which Office, OpenDocument and EPUB store documents.

Their authors are not trusted. Sizes are checked before a member is read, and XML entities are
refused. As in Office, the names of members are case-insensitive and can contain backslashes.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from llama_index_contextual.app.folder.formats import ConversionError

if TYPE_CHECKING:
    from lxml.etree import _Element
    from typing_extensions import Self

# Total bytes of all members as declared in the archive. A member with a wrong size is truncated.
_MAX_BYTES = 500_000_000
_MAX_MEMBERS = 50_000
_MAX_XML = 50_000_000  # bytes of a parsed member
_MAX_INTEGER = 10**6
_OLE = b"\xd0\xcf\x11\xe0"  # the start of old and of encrypted Office files
# The namespaces of "Strict Open XML", and those that other programs use in their place.
_STRICT = re.compile(rb"purl\.oclc\.org/ooxml/(\w+)/(\w+)")
_TRANSITIONAL = rb"schemas.openxmlformats.org/\1/2006/\2"
# Members with styles and properties. Damage in them does not affect the text.
_DETAILS = re.compile(
    r"docprops/.+|(?:.+/)?(?:styles|numbering|settings|theme\d*|meta|presprops|viewprops)\.xml"
)
_CORE = {"creator": "author", "initial-creator": "author", "creation-date": "created"}
_CORE_KEYS = ("title", "subject", "author", "created", "modified")
# Elements of Office and OpenDocument that are not text.
_PICTURES = {"blip": "picture", "imagedata": "picture", "image": "picture"}
_COMMENTS = {"comment": "comment", "cm": "comment", "annotation": "comment"}
_NO_TEXT = {
    **_PICTURES,
    **_COMMENTS,
    "chart": "chart",
    "object": "object",
    "oleObj": "object",
    "videoFile": "video",
    "audioFile": "sound",
}


class Relation(NamedTuple):
    """A reference from one member of an Office file to another."""

    id: str
    kind: str
    target: str


class Archive:
    """A ZIP archive whose sizes are checked.

    Raises:
        ConversionError: It is damaged, encrypted or too large.
    """

    def __init__(self, file: Path | IO[bytes]) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            if isinstance(file, Path) and file.read_bytes()[:4] == _OLE:
                raise ConversionError(
                    "it is encrypted, or from an old version of Office. Save it without a password "
                    "in a current format, or ignore it."
                ) from error
            raise ConversionError(
                f"it is damaged, or its type does not match its suffix ({error}). Save it again "
                "in its program, or ignore it."
            ) from error
        members = self._zip.infolist()
        self._members = {_key(member.filename): member for member in members}
        size = sum(member.file_size for member in members)
        if size > _MAX_BYTES or len(members) > _MAX_MEMBERS:
            contents = f"{len(members):,} files and {size:,} bytes"
            raise ConversionError(
                f"it is a ZIP archive of {contents}, which is too large for a document. Ignore it."
            )
        if any(member.flag_bits & 1 for member in members) or self._is_encrypted_opendocument():
            raise ConversionError("it is encrypted. Save it without a password, or ignore it.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return _key(name) in self._members

    @property
    def names(self) -> list[str]:
        """Return the names of the members, in lower case and with slashes."""
        return list(self._members)

    def read(self, name: str) -> bytes:
        """Return the bytes of a member, with the usual namespaces in place of strict ones."""
        return _STRICT.sub(_TRANSITIONAL, self._zip.read(self._members[_key(name)]))

    def xml(self, name: str, max_bytes: int = _MAX_XML) -> _Element:
        """Return a member as XML, or an empty element if there is no such member.

        If a member with styles or properties is damaged, its readable part is returned.
        """
        from lxml import etree

        if name not in self:
            return etree.Element("none")
        self._check_size(name, max_bytes)
        # By default, the parser loads no DTD, uses no network, and refuses huge trees.
        is_detail = _DETAILS.fullmatch(_key(name)) is not None
        parser = etree.XMLParser(resolve_entities=False, collect_ids=False, recover=is_detail)
        root: _Element | None = None
        try:
            root = etree.fromstring(self.read(name), parser)
        except etree.XMLSyntaxError as error:
            if not is_detail:
                raise _damaged(name, error) from error
        if root is None:
            return etree.Element("none")
        dtd = root.getroottree().docinfo.internalDTD
        if dtd is not None and any(True for _ in dtd.iterentities()):
            raise _entity_error(name)
        return root

    def elements(self, name: str, tag: str, max_bytes: int) -> Iterator[_Element]:
        """Yield the elements with a name from a member that is too large for a tree."""
        from lxml import etree

        if name not in self:
            return
        self._check_size(name, max_bytes)
        data = self.read(name)
        if b"<!DOCTYPE" in data.replace(b"\0", b""):  # also in UTF-16; text cannot contain "<"
            raise _entity_error(name)
        context = etree.iterparse(io.BytesIO(data), tag=f"{{*}}{tag}", huge_tree=True)
        try:
            for _, element in context:
                yield element
                element.clear()
        except etree.XMLSyntaxError as error:
            raise _damaged(name, error) from error

    def relations(self, name: str) -> list[Relation]:
        """Return the references from a member of an Office file, or from the archive ("")."""
        folder, base = posixpath.split(name)
        relations = []
        for child in self.xml(posixpath.join(folder, "_rels", f"{base}.rels")):
            if attribute(child, "TargetMode") != "External":
                target = attribute(child, "Target").replace("\\", "/")
                path = posixpath.normpath(posixpath.join("/", folder, target))
                kind = posixpath.basename(attribute(child, "Type"))
                relations.append(Relation(attribute(child, "Id"), kind, path.lstrip("/")))
        return relations

    def related(self, name: str, kind: str) -> list[str]:
        """Return the names of the members of one kind that a member refers to."""
        return [relation.target for relation in self.relations(name) if relation.kind == kind]

    def main_member(self, default: str, kind: str) -> str:
        """Return the name of the main member of an Office file.

        Args:
            default: The name to use if the archive does not declare one.
            kind: The expected kind of file, such as "workbook".

        Raises:
            ConversionError: The file has no such member.
        """
        name = next(iter(self.related("", "officeDocument")), default)
        if name not in self:
            raise ConversionError(f"it is damaged or not a {kind} (it has no {name}). Ignore it.")
        return name

    def _check_size(self, name: str, max_bytes: int) -> None:
        size = self._members[_key(name)].file_size
        if size > max_bytes:
            raise ConversionError(
                f"its {name} has {size:,} bytes, more than {max_bytes:,}. Split it, or ignore it."
            )

    def _is_encrypted_opendocument(self) -> bool:
        manifest = "META-INF/manifest.xml"
        return manifest in self and b"encryption-data" in self.read(manifest)


def _key(name: str) -> str:
    return name.replace("\\", "/").lower()


def _damaged(name: str, error: Exception) -> ConversionError:
    return ConversionError(f"it is damaged ({name}: {error}). Save it again, or ignore it.")


def _entity_error(name: str) -> ConversionError:
    return ConversionError(f"its {name} declares an entity, which is not allowed. Ignore it.")


def integer(text: object, default: int = 1, maximum: int = _MAX_INTEGER) -> int:
    """Return the number in an attribute, up to a bound, or the default if it is not a number."""
    match = re.fullmatch(r"\s{0,9}(\d{1,9})\s{0,9}", str(text))
    return min(int(match[1]), maximum) if match else default


def local_name(element: _Element) -> str:
    """Return an element's name without its namespace; "" for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: _Element | None, name: str) -> str:
    """Return the attribute with a name in any namespace; "" if there is none."""
    if element is not None:
        for key, value in element.attrib.items():
            if str(key).rpartition("}")[2] == name:
                return str(value)
    return ""


def count_left_out(root: _Element) -> Counter[str]:
    """Return the counts of the elements that are not text, such as pictures."""
    kinds = map(local_name, root.iter())
    return Counter(_NO_TEXT[kind] for kind in kinds if kind in _NO_TEXT)


def core_metadata(root: _Element, date: str = "modified") -> dict[str, str]:
    """Return the title, author and dates from Office, OpenDocument or EPUB metadata.

    Args:
        root: The element that contains them.
        date: The meaning of the element ``date``, ``"created"`` or ``"modified"``.
    """
    metadata: dict[str, str] = {}
    for element in root.iter():
        name = local_name(element)
        key = date if name == "date" else _CORE.get(name, name)
        if key in _CORE_KEYS:
            text = "".join(map(str, element.itertext())).strip()
            if text:
                metadata.setdefault(key, text)
    return metadata
