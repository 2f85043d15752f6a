"""A table of figures that fits its terminal: the name and the first figures always, the rest as far as there is room.

Columns go from the right when they do not fit, and their names are said, so that nothing is cut in the middle of
a number.  A long name is folded.
"""

from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

_LEAST_NAME = 16
_NAME_SHARE = 0.3  # of the width, which a name may have at the cost of columns


@dataclass(frozen=True, slots=True)
class Row:
    """A name and its figures; `dim` for what is in no total, `apart` with an empty line above."""

    name: str
    cells: list[str]
    dim: bool = False
    apart: bool = False


def print_table(console: Console, head: Row, rows: list[Row], keep: int = 1) -> None:
    """Prints an empty line, the head, a rule and the rows; every row has as many cells as the head.

    The first `keep` figures are never left out: before that names are folded, and at last lines are too long.
    """
    lines = [head, *rows]
    widths = [max(cell_len(row.cells[i]) for row in lines) for i in range(len(head.cells))]
    name = min(max(cell_len(row.name) for row in lines), max(_LEAST_NAME, int(console.width * _NAME_SHARE)))
    gap = 2 if name + sum(width + 2 for width in widths) <= console.width else 1
    shown = len(widths)
    while shown > keep and name + sum(width + gap for width in widths[:shown]) > console.width:
        shown -= 1
    if shown == keep:
        name = max(1, min(name, console.width - sum(width + gap for width in widths[:shown])))
    rule = ("-" if console.options.ascii_only else "\u2500") * (name + sum(w + gap for w in widths[:shown]))
    console.print()
    for row in lines:
        if row.apart:
            console.print()
        _print_row(console, row, name, [width + gap for width in widths[:shown]])
        if row is head:
            console.print(Text(rule), no_wrap=True, overflow="ignore")
    if left_out := head.cells[shown:]:
        console.print(Text(f"too narrow for {', '.join(left_out)}", style="dim"))


def _print_row(console: Console, row: Row, name: int, widths: list[int]) -> None:
    folded = chop_cells(row.name, name) or [""]
    cells = "".join(
        " " * (width - cell_len(cell)) + cell for cell, width in zip(row.cells, widths, strict=False)
    )
    first = folded[0] + " " * (name - cell_len(folded[0])) + cells
    for line in (first, *folded[1:]):
        console.print(Text(line, style="dim" if row.dim else ""), no_wrap=True, overflow="ignore", crop=False)
