"""Answers that were read once, by their size: the next one alike is compared, not decoded.

Two answers are alike when they have the same size and the same bytes wherever a template says so, and when the
elements of their BYTES tensors fill these.
"""

from loadgen.records import AnswerTemplate

SAMPLE = 4095  # one answer in so many, plus one, is decoded although it looks like one that was read
_SIZES = 1024  # answers of more sizes than that are forgotten, and read again
_PREFIXES = 8  # that differ at one size: lengths of outputs that change places
_LONGEST = 64 * 1024  # bytes of a prefix: what is hardly ever the same twice is not kept


class Known:
    """Of one size.  `prefixes`: how such answers may begin; `rest`: what stands further on, if anything does."""

    __slots__ = ("prefixes", "rest")

    def __init__(self, prefixes: tuple[bytes, ...], rest: AnswerTemplate | None) -> None:
        self.prefixes = prefixes
        self.rest = rest

    def fits(self, data: bytes, start: int = 0) -> bool:
        """Whether the answer that begins at `start` is alike; its size is."""
        return data.startswith(self.prefixes, start) and (self.rest is None or self.rest_fits(data, start))

    def rest_fits(self, data: bytes, start: int) -> bool:
        """What follows the prefix.  Only where there is a `rest`."""
        assert self.rest is not None  # noqa: S101 - asked by the callers
        for at, piece in self.rest.pieces:
            if not data.startswith(piece, start + at):
                return False
        return all(_elements(data, start + a, start + b) == n for a, b, n in self.rest.texts)


class KnownAnswers(dict[int, Known]):
    """By size, from where the templates' offsets count."""

    def learn(self, head: bytes, size: int, template: AnswerTemplate) -> None:
        """An answer of `size` bytes, `head` and a body, was read: `template` is the body's."""
        prefix = head + template.prefix
        if len(prefix) > _LONGEST:
            return
        if len(self) >= _SIZES:
            self.clear()
        if template.pieces or template.texts:
            by = len(head)
            pieces = tuple((at + by, piece) for at, piece in template.pieces)
            texts = tuple((start + by, stop + by, n) for start, stop, n in template.texts)
            self[size] = Known((prefix,), AnswerTemplate(prefix, pieces, texts))
            return
        old = self.get(size)
        others = old.prefixes if old is not None and old.rest is None else ()
        self[size] = Known((prefix, *(p for p in others if p != prefix))[:_PREFIXES], None)


def _elements(data: bytes, at: int, stop: int) -> int:
    """How many elements of a BYTES tensor fill [at, stop); -1 when they do not."""
    found = 0
    while at < stop:
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        found += 1
    return found if at == stop else -1
