"""Lines of input files: they end at LF or CRLF and nowhere else, in UTF-8.

Python's str.splitlines also cuts at VT, FF, U+0085, U+2028 and U+2029, which are characters of a text.
"""

BOM = b"\xef\xbb\xbf"
_OTHERS = {
    b"\xff\xfe": "UTF-16 (or UTF-32) text",
    b"\xfe\xff": "UTF-16 text",
}


class LinesError(ValueError):
    """A file that is not text with LF line ends in UTF-8: what it is instead."""


def check_text(start: bytes) -> None:
    """Raises LinesError when the first bytes of a file are those of another encoding."""
    for mark, name in _OTHERS.items():
        if start.startswith(mark):
            raise LinesError(f"is {name}; save it as UTF-8")


def check_line_ends(whole: bytes) -> None:
    """Raises LinesError when what should be lines ends them with CR alone."""
    if b"\r" in whole and b"\n" not in whole:
        raise LinesError("its lines end with CR alone; save it with LF or CRLF line ends")


def text_lines(whole: bytes, *, any_bytes: bool = False) -> list[bytes]:
    """The lines of a file without their ends; a last one that is empty is none.  Raises LinesError.

    `any_bytes`: lines need not be UTF-8, so that two bytes alone do not make a file UTF-16.
    """
    if not any_bytes or b"\n\0" in whole or b"\0\n" in whole:
        check_text(whole)
    check_line_ends(whole)
    lines = whole.removeprefix(BOM).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def split_lines(text: str) -> list[str]:
    """The lines of a text, likewise."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
