"""Word files of a few elements, as a test needs them."""

import zipfile
from pathlib import Path

NAMES = (
    " ".join(
        f'xmlns:{name}="http://schemas.{address}"'
        for name, address in {
            "w": "openxmlformats.org/wordprocessingml/2006/main",
            "m": "openxmlformats.org/officeDocument/2006/math",
            "mc": "openxmlformats.org/markup-compatibility/2006",
            "a": "openxmlformats.org/drawingml/2006/main",
            "wps": "microsoft.com/office/word/2010/wordprocessingShape",
            "r": "openxmlformats.org/officeDocument/2006/relationships",
        }.items()
    )
    + ' xmlns:v="urn:schemas-microsoft-com:vml"'
)
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
STYLES = "".join(
    f'<w:style w:type="paragraph" w:styleId="H{level}"><w:name w:val="heading {level}"/></w:style>'
    for level in (1, 2)
)


def word(
    path: Path, body: str, styles: str = "", main: str = "document.xml", **members: str
) -> Path:
    """Write a Word file.

    Its body, more styles, and members of ``word/`` by their names without a suffix.
    """
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    written = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/{main}" ContentType="{kind}"/></Types>',
        "_rels/.rels": "<Relationships "
        'xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        f'<Relationship Id="r1" Type="{OFFICE}" Target="word/{main}"/></Relationships>',
        f"word/{main}": f"<w:document {NAMES}><w:body>{body}</w:body></w:document>",
        "word/styles.xml": f"<w:styles {NAMES}>{STYLES}{styles}</w:styles>",
        **{
            f"word/{name}.xml": f"<w:{name} {NAMES}>{text}</w:{name}>"
            for name, text in members.items()
        },
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in written.items():
            archive.writestr(name, text)
    return path


def paragraph(inner: str, style: str = "", properties: str = "") -> str:
    inner = inner if inner.startswith("<") else run(inner)
    style = f'<w:pStyle w:val="{style}"/>' if style else ""
    return f"<w:p><w:pPr>{style}{properties}</w:pPr>{inner}</w:p>"


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def raised(text: str, where: str = "superscript") -> str:
    return run(text, f'<w:vertAlign w:val="{where}"/>')


def cell(text: str, properties: str = "") -> str:
    inner = text if text.startswith("<") else paragraph(text)
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{inner}</w:tc>"


def row(*cells: str, properties: str = "") -> str:
    cells = (content if content.startswith("<") else cell(content) for content in cells)
    return f"<w:tr>{f'<w:trPr>{properties}</w:trPr>' if properties else ''}{''.join(cells)}</w:tr>"


def table(*rows: str) -> str:
    return f"<w:tbl>{''.join(rows)}</w:tbl>"


def control(inner: str) -> str:
    return f"<w:sdt><w:sdtPr/><w:sdtContent>{inner}</w:sdtContent></w:sdt>"


def listed(level: int, number: int = 1) -> str:
    return f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>'


def numbering(*levels: str, number: int = 1, more: str = "") -> str:
    """A list, each of its levels as ``"decimal %1.%2"``, perhaps with a start, ``"decimal %1. 4"``."""  # noqa: E501
    written = ""
    for depth, level in enumerate(levels):
        kind, text, start = [*level.split(" "), "1"][:3]
        written += (
            f'<w:lvl w:ilvl="{depth}"><w:start w:val="{start}"/><w:numFmt w:val="{kind}"/>'
            f'<w:lvlText w:val="{text.replace("_", " ")}"/></w:lvl>'
        )
    return (
        f'<w:abstractNum w:abstractNumId="{number}">{written}</w:abstractNum>'
        f'<w:num w:numId="{number}"><w:abstractNumId w:val="{number}"/></w:num>{more}'
    )
