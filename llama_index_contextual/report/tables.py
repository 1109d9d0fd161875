"""A table with remarks: as plain text, as Markdown, and as HTML for a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from llama_index_contextual.report.pages import render

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH = 200  # characters


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts, and what there is to know of its figures. ``str`` of it is plain text.

    Attributes:
        title: The heading of its section in a report; "" for none.
        header: The names of the columns.
        rows: One text for each column. The first names the row.
        remarks: Sentences about the table.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()

    def __str__(self) -> str:
        grid = Grid(self.header[0], box=None, pad_edge=False)
        for column in self.header[1:]:
            grid.add_column(column, justify="right")
        for row in self.rows:
            grid.add_row(*map(Text, row))
        console = Console(file=StringIO(), width=_WIDTH, record=True, force_jupyter=False)
        console.print(grid)
        return "\n".join([*(line.rstrip() for line in console.export_text().splitlines()), *self.remarks])

    def to_html(self) -> str:
        """Return an HTML fragment."""
        return render("table.html", table=self)

    def to_markdown(self) -> str:
        """Return a section of a Markdown page."""
        lines = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (self.header, *self.rows)]
        lines.insert(1, ["---"] * len(self.header))
        heading = f"## {self.title}\n\n" if self.title else ""
        return heading + "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *self.remarks, ""])
