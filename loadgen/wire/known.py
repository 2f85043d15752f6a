"""Answers that were read once, by their size: the next one alike is compared, not decoded.

Two answers are alike when they have the same size and the same bytes wherever a template says so, and when the
elements of their BYTES tensors fill these.
"""

from collections.abc import Hashable

from loadgen.records import AnswerTemplate

SAMPLE = 4095  # one answer in so many, plus one, is decoded although it looks like one that was read
_SIZES = 1024  # answers of more sizes than that are forgotten, and read again
_BYTES = 4 * 1024 * 1024  # what may be kept of all of them
_EACH = 128  # bytes that keeping a piece, or a place, costs besides
_PREFIXES = 8  # that differ at one size: lengths of outputs that change places
_LONGEST = 64 * 1024  # bytes of one answer: what is hardly ever the same twice is not kept


class Known:
    """Of one size.  `prefixes`: how such answers may begin; `rest`: what stands further on, if anything does."""

    __slots__ = ("prefixes", "rest")

    def __init__(self, prefixes: tuple[bytes, ...], rest: AnswerTemplate | None) -> None:
        self.prefixes = prefixes
        self.rest = rest

    def fits(self, data: bytes, start: int = 0) -> bool:
        """Whether the answer that begins at `start` is alike; its size is."""
        return data.startswith(self.prefixes, start) and (
            self.rest is None or rest_fits(self.rest, data, start)
        )

    def template(self, data: bytes) -> AnswerTemplate:
        """Of an answer that fits."""
        if self.rest is not None:
            return self.rest
        return AnswerTemplate(next(prefix for prefix in self.prefixes if data.startswith(prefix)))


class KnownAnswers(dict[Hashable, Known]):
    """By the size of what came in one piece, from where the templates' offsets count, or by (fields of its head, size)
    of a body alone.  At most `_BYTES` are kept, in as many answers as `_SIZES`: beyond that it begins anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0  # learned since it began

    def learn(self, head: bytes, key: Hashable, template: AnswerTemplate) -> None:
        """An answer, `head` and a body, was read: `template` is the body's."""
        prefix = head + template.prefix
        places = len(template.pieces) + len(template.texts)
        size = len(prefix) + sum(len(piece) for _, piece in template.pieces) + _EACH * (2 + places)
        if size > _LONGEST:
            return
        if len(self) >= _SIZES or self._bytes + size > _BYTES:
            self.clear()
            self._bytes = 0
        self._bytes += size
        if places:
            by = len(head)
            pieces = tuple((at + by, piece) for at, piece in template.pieces)
            texts = tuple((start + by, stop + by, n) for start, stop, n in template.texts)
            self[key] = Known((prefix,), AnswerTemplate(prefix, pieces, texts))
            return
        old = self.get(key)
        others = old.prefixes if old is not None and old.rest is None else ()
        self[key] = Known((prefix, *(p for p in others if p != prefix))[:_PREFIXES], None)


def rest_fits(rest: AnswerTemplate, data: bytes, start: int) -> bool:
    """Whether what follows the prefix is alike."""
    for at, piece in rest.pieces:
        if not data.startswith(piece, start + at):
            return False
    return all(_elements(data, start + a, start + b) == n for a, b, n in rest.texts)


def _elements(data: bytes, at: int, stop: int) -> int:
    """How many elements of a BYTES tensor fill [at, stop); -1 when they do not."""
    found = 0
    while at < stop:
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        found += 1
    return found if at == stop else -1
