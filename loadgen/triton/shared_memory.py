"""Tensors in the machine's shared memory: regions made, filled, registered at the server, and taken back.

    memory = SharedMemory(target, options)
    placed = memory.place("k", payloads, inputs=True, outputs=[{"OUTPUT": 64}, ...])
    await memory.open()      # the server knows the regions
    ...
    await memory.close()     # unregistered and unlinked, whatever happened

A region's name holds the process that made it, so that what a killed one left can be told from what another uses.
POSIX shared memory is a file in /dev/shm: written as one, and not mapped here, for nothing is read back.  This
module must not know profiles, nor how requests are sent.
"""

import asyncio
import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.connect.options import ConnectOptions
from loadgen.records import LoadgenError, Payload, Placed, Region, Tensor
from loadgen.target import Target
from loadgen.triton.grpc_link import GrpcLink
from loadgen.triton.keeper import born
from loadgen.triton.links import HttpLink, Link, ServerSaidError
from loadgen.triton.words import one_line
from loadgen.units import show_bytes

FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux has it
_ALIGN = 64
_TIMEOUT_S = 5.0
_TRIES, _PAUSE_S = 20, 0.1  # a region in use by a request that was given up
_NAME = re.compile(r"loadgen-(?P<space>\d+)-(?P<pid>\d+)-(?P<born>\d+)-\d+")
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class InMemory:
    """One variant: its inputs, some of them placed, and where its outputs go (None: over the connection)."""

    tensors: tuple[Tensor | Placed, ...]
    outputs: Mapping[str, Region] | None


class SharedMemory:
    """The regions of this process at one server.  `removed` names what ended processes had left."""

    def __init__(self, target: Target, options: ConnectOptions) -> None:
        """Raises LoadgenError for a server that is on another machine, and where there is no such memory."""
        if _LOOPBACK.fullmatch(target.host) is None:
            raise LoadgenError(
                f"shared memory needs a server on this machine, at 127.0.0.1 or localhost, not {target.host}"
            )
        if not FOLDER.is_dir():
            raise LoadgenError(f"shared memory needs {FOLDER}, which this system does not have (Linux does)")
        kind = GrpcLink if target.protocol == "grpc" else HttpLink
        self._link: Link = kind(target, options, timeout_s=_TIMEOUT_S)
        self._target = target
        self._sizes: dict[str, int] = {}
        self._known: list[str] = []
        self.removed: list[str] = []

    @property
    def size(self) -> int:
        """Bytes of all regions."""
        return sum(self._sizes.values())

    def place(
        self,
        kind: str,
        payloads: Sequence[Payload],
        *,
        inputs: bool,
        outputs: Sequence[Mapping[str, int]] | None,
    ) -> list[InMemory]:
        """Puts a kind's inputs into one region, and room for its outputs (their bytes, a payload) into another.

        Raises LoadgenError, naming the kind, when there is not enough of that memory; what was made is unlinked.
        """
        if not payloads:
            return []
        tensors: list[tuple[Tensor | Placed, ...]] = [payload.tensors for payload in payloads]
        rooms: list[Mapping[str, Region] | None] = [None] * len(payloads)
        try:
            if inputs:
                sizes = [len(tensor.data) for payload in payloads for tensor in payload.tensors]
                name, offsets = self._make(sizes)
                self._fill(name, offsets, (tensor.data for payload in payloads for tensor in payload.tensors))
                at = iter(offsets)
                tensors = [
                    tuple(
                        Placed(t.name, t.datatype, t.shape, Region(name, next(at), len(t.data)))
                        for t in payload.tensors
                    )
                    for payload in payloads
                ]
            if outputs is not None:
                name, offsets = self._make([size for room in outputs for size in room.values()])
                at = iter(offsets)
                rooms = [
                    {output: Region(name, next(at), size) for output, size in room.items()}
                    for room in outputs
                ]
        except OSError as why:
            free = os.statvfs(FOLDER).f_bavail * os.statvfs(FOLDER).f_frsize
            self.unlink()
            raise LoadgenError(
                f"kind {kind!r}: no shared memory for its tensors ({why.strerror}; {FOLDER} has "
                f"{show_bytes(free)} left)"
            ) from None
        return [InMemory(*both) for both in zip(tensors, rooms, strict=True)]

    def _make(self, sizes: Sequence[int]) -> tuple[str, list[int]]:
        """A region for tensors of these sizes, and where each begins."""
        ends = list(itertools.accumulate(-(-max(size, 1) // _ALIGN) * _ALIGN for size in sizes))
        name = own_name()
        descriptor = os.open(FOLDER / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        self._sizes[name] = ends[-1]
        try:
            os.posix_fallocate(descriptor, 0, ends[-1])  # a full disk is told here, not by a signal later
        finally:
            os.close(descriptor)
        return name, [0, *ends[:-1]]

    @staticmethod
    def _fill(name: str, offsets: Sequence[int], data: Iterable[bytes]) -> None:
        with (FOLDER / name).open("r+b", buffering=0) as file:
            for offset, piece in zip(offsets, data, strict=True):
                file.seek(offset)
                file.write(piece)

    async def open(self) -> None:
        """Removes what ended processes left, then tells the server of every region not yet told.

        Raises LoadgenError when the server has no such extension or cannot see the memory.
        """
        await self._sweep()
        for name, size in self._sizes.items():
            if name in self._known:
                continue
            self._known.append(name)  # also when the answer is lost: better unregistered twice
            try:
                await self._link.register_memory(name, f"/{name}", size)
            except ServerSaidError as why:
                raise self._refused(why) from None

    def _refused(self, why: ServerSaidError) -> LoadgenError:
        if why.absent:
            return LoadgenError(f"{self._target.url} has no system shared memory extension ({why.status})")
        hint = ""
        if "open shared memory" in why.message:
            hint = f"; does it run on this machine, as this user, and in a container with this {FOLDER} (--ipc=host)?"
        return LoadgenError(
            f"{self._target.url} refused a shared memory region: {one_line(why.message)} ({why.status}){hint}"
        )

    async def _sweep(self) -> None:
        """Takes away regions, here and at the server, of processes of this machine that are no more."""
        try:
            told = await self._link.memory()
        except ServerSaidError as why:
            raise self._refused(why) from None
        for name in sorted({*told, *(path.name for path in FOLDER.iterdir())}):  # noqa: ASYNC240 - memory, not a disk
            if not is_left_over(name):
                continue
            if name in told:
                with contextlib.suppress(ServerSaidError):
                    await self._link.unregister_memory(name)
            _unlink(name)
            self.removed.append(name)

    async def close(self) -> None:
        """Unregisters and unlinks.  Never raises: a server that is gone has forgotten its regions."""
        try:
            for name in self._known:
                await self._unregister(name)
            self._known.clear()
        except LoadgenError:
            pass
        finally:
            self.unlink()
            await self._link.close()

    async def _unregister(self, name: str) -> None:
        for _ in range(_TRIES):
            try:
                await self._link.unregister_memory(name)
            except ServerSaidError:
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    def unlink(self) -> None:
        """Gives the memory back to the machine; the server lets go of it with its own registration."""
        for name in self._sizes:
            _unlink(name)
        self._sizes.clear()


def _unlink(name: str) -> None:
    with contextlib.suppress(OSError):
        (FOLDER / name).unlink()


def own_name() -> str:
    """A new name that tells which process of which pid space made it."""
    return f"loadgen-{_space()}-{os.getpid()}-{_ticks(os.getpid())}-{next(_numbers)}"


def is_left_over(name: str) -> bool:
    """Whether a region is ours by its name, and its process is no more."""
    made = _NAME.fullmatch(name)
    return made is not None and int(made["space"]) == _space() and made["born"] != _ticks(int(made["pid"]))


def _space() -> int:
    """Pids mean something within one namespace only; containers may share the memory, and not that."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _ticks(pid: int) -> str:
    """When it began, since boot; "" when there is none."""
    return (born(pid) or "").rpartition("/")[2]
