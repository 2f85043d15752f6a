"""The optimization profiles that a serialised engine holds, read from its bytes where no GPU can load it.

The format is not documented.  Its layout was found in engines of TensorRT for RTX 1.7.1 that were built with known
shapes: a list is `01 80 TAG 01 00` and its length in 8 bytes, a rank `07 80 01 00` and 4 bytes, and what is no plain
number ends with its tag inverted.  The profiles are a list of lists, one of the tensors of each profile (the inputs,
then the outputs); a tensor has three shapes, and those of an output have the rank -1.  A file that is laid out
otherwise is not guessed at.  It must not know TensorRT's module, nor the shapes that were asked for.
"""

import contextlib
import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadgen.convert.profiles import Ranges, Shape

_PROFILES = re.compile(
    rb"\x01\x80.\x80\x01\x00(?P<profiles>.{8})"
    rb"(?P<tensors>\x01\x80(?P<tensor>.\x80)\x01\x00(?P<count>.{8}))"
    rb"(?P<three>\x01\x80(?P<shape>.\x80)\x01\x00\x03\0{7})\x07\x80\x01\x00",
    re.DOTALL,
)
_RANK, _SIZES = b"\x07\x80\x01\x00", b"\x01\x80\x09\x80\x01\x00"
_LARGEST_RANK = 8  # of TensorRT's tensors


class _OtherLayoutError(ValueError):
    """These bytes are no profiles."""


def read_profiles(plan: Path, inputs: Sequence[str]) -> tuple[Ranges, ...] | None:
    """The profiles of an engine whose inputs are `inputs`, in the network's order; None for an unknown layout."""
    found = []
    with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for head in _PROFILES.finditer(data):
            with contextlib.suppress(_OtherLayoutError):
                found.append(tuple(_profiles(data, head, inputs)))
    return found[0] if len(found) == 1 else None


def _profiles(data: mmap.mmap, head: re.Match[bytes], inputs: Sequence[str]) -> Iterator[Ranges]:
    (profiles,), (tensors,) = struct.unpack("<q", head["profiles"]), struct.unpack("<q", head["count"])
    if profiles < 1 or tensors <= len(inputs):
        raise _OtherLayoutError
    reader = _Reader(data, head.start("tensors"))
    for _ in range(profiles):
        reader.at = data.find(head["tensors"], reader.at)  # between profiles are the values of shape tensors
        reader.expect(head["tensors"])
        yield Ranges({name: reader.tensor(head) for name in inputs})


class _Reader:
    """Reads on from `at`; raises _OtherLayoutError for what is not there."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if self.at < 0 or len(taken) != size:
            raise _OtherLayoutError
        self.at += size
        return taken

    def expect(self, expected: bytes) -> None:
        if self.take(len(expected)) != expected:
            raise _OtherLayoutError

    def tensor(self, head: re.Match[bytes]) -> tuple[Shape, Shape, Shape]:
        """An input's smallest, tuned and largest shape."""
        self.expect(head["three"])
        low, typical, high = (self.shape(_inverted(head["shape"])) for _ in range(3))
        self.expect(_inverted(head["tensor"]))
        return low, typical, high

    def shape(self, end: bytes) -> Shape:
        self.expect(_RANK)
        rank = int.from_bytes(self.take(4), "little", signed=True)
        if not 0 <= rank <= _LARGEST_RANK:
            raise _OtherLayoutError
        self.expect(_SIZES + rank.to_bytes(8, "little"))
        sizes = struct.unpack(f"<{rank}q", self.take(8 * rank))
        self.expect(end)
        return sizes


def _inverted(tag: bytes) -> bytes:
    return bytes(0xFF - byte for byte in tag)
