"""What each kind of a profile sends, built to demand: tensors, texts or plain HTTP requests, one maker a kind.

It must not know schedules, connections or what came of a request.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from loadgen.lab.texts import build_texts, prompt_count, prompt_remarks, shared_prefix, text_facts
from loadgen.records import LoadgenError, Message, QueueFull, Wanted
from loadgen.triton.trace import request_label
from loadgen.workload import http_body, payloads
from loadgen.workload.budget import BUDGET_BYTES, MOST_BYTES, affordable
from loadgen.workload.outputs import declared_outputs, output_bytes
from loadgen.workload.parameters import request_parameters
from loadgen.workload.rows import read_data
from loadgen.workload.sequences import FIRST_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from loadgen.records import ModelFacts, Payload, Request
    from loadgen.target import Target
    from loadgen.traffic.chat import Chat, Completion, Generate
    from loadgen.traffic.http_request import HttpRequest
    from loadgen.traffic.profile import Kind, TrafficProfile
    from loadgen.triton.shared_memory import InMemory, SharedMemory

_TEXT_ID = "0" * 19  # as wide as the ids that will take its place
_BYTES_A_TOKEN = 8  # of English, with room
_TEXT_BUDGET = 2**28


class KindMaker(Protocol):
    """Builds the requests of one kind.  `budget` and `size` are in bytes; all may raise LoadgenError."""

    budget: int

    @property
    def remarks(self) -> Sequence[str]:
        """What the server will not do of what is asked, a line each."""

    @property
    def in_order(self) -> bool:
        """Whether variants are sent one after the other: rows of a file."""

    @property
    def unrepeated(self) -> bool:
        """Whether a variant that was sent before would be answered sooner: prompts, for a server's prefix cache."""

    def most(self, asked: Sequence[Wanted]) -> int:
        """How many variants are worth having, where these are the shortest and longest asked for."""

    def size(self, wanted: Wanted) -> int: ...

    def messages(self, wanted: Sequence[Wanted], rng: np.random.Generator) -> list[Message]: ...

    def facts(self, built: int) -> dict[str, Any]:
        """For run.json, `built` variants having been made."""


def make_kinds(
    profile: TrafficProfile,
    target: Target,
    models: Mapping[tuple[str, str], ModelFacts],
    memory: SharedMemory | None = None,
    *,
    include_usage: bool = True,
    labelled: bool = False,
) -> list[KindMaker]:
    """A maker for each kind; tensors are `labelled` with what a trace of the server does not tell.

    Raises LoadgenError for a kind that does not go with the target or its model.
    """
    makers: list[KindMaker] = []
    for kind in profile.kinds.values():
        check_target(kind, target)
        if kind.http is not None:
            makers.append(PlainKind(kind, kind.http, profile.folder))
        elif kind.text is not None:
            makers.append(TextKind(kind, kind.text, profile.folder, include_usage=include_usage))
        else:
            facts = models[kind.model, kind.version]
            makers.append(TensorKind(kind, facts, target, profile.folder, memory, labelled=labelled))
    return makers


def check_target(kind: Kind, target: Target) -> None:
    """Raises LoadgenError when the target does not speak what the kind sends."""
    where = f"kind {kind.name!r}"
    if (kind.chat or kind.completion) and target.dialect != "openai":
        raise LoadgenError(
            f"{where}: chats and completions need an openai+http:// or openai+https:// target, not {target.url}"
        )
    if kind.is_kserve and target.dialect == "openai":
        raise LoadgenError(f"{where}: tensors need a KServe v2 target (http://, grpc://), not {target.url}")
    if kind.generate and (target.protocol != "http" or target.dialect == "openai"):
        raise LoadgenError(f"{where}: generate needs an http:// or https:// target, not {target.url}")
    if kind.stream and target.protocol != "grpc":
        raise LoadgenError(f"{where}: stream needs a grpc:// or grpcs:// target, not {target.url}")


def _marked(kind: Kind, messages: list[Message]) -> list[Message]:
    """The messages of a kind, with what its profile says of a full queue."""
    if kind.full is None:
        return messages
    full = QueueFull(frozenset(kind.full.status), tuple(words.lower() for words in kind.full.words))
    return [replace(one, request=replace(one.request, full=full)) for one in messages]


class TensorKind:
    """KServe v2 inference."""

    unrepeated = False

    def __init__(
        self,
        kind: Kind,
        facts: ModelFacts,
        target: Target,
        folder: Path,
        memory: SharedMemory | None,
        *,
        labelled: bool = False,
    ) -> None:
        self._labelled = labelled
        self._kind, self._facts, self._target, self._memory = kind, facts, target, memory
        self._data = read_data(kind, facts, folder)
        self._parameters, self._remarks = request_parameters(
            kind.name, facts, priority=kind.priority, server_timeout_ns=kind.server_timeout_ns,
            parameters=kind.parameters,
        )  # fmt: skip
        self.budget = MOST_BYTES if self._data.groups else BUDGET_BYTES

    @property
    def remarks(self) -> Sequence[str]:
        return self._remarks

    @property
    def in_order(self) -> bool:
        return self._data.in_order

    def most(self, asked: Sequence[Wanted]) -> int:
        return payloads.most_variants(self._kind, self._facts, self._data, asked)

    def size(self, wanted: Wanted) -> int:
        return payloads.size_of(self._kind, self._facts, self._data, wanted)

    def messages(self, wanted: Sequence[Wanted], rng: np.random.Generator) -> list[Message]:
        built = payloads.build(self._kind, self._facts, wanted, rng, self._data)
        messages = [
            Message(self._request(payload, at), payload.length, payload.items)
            for payload, at in zip(built, self._placed(built), strict=True)
        ]
        return _marked(self._kind, messages)

    def _request(self, payload: Payload, at: Payload | InMemory) -> Request:
        outputs = getattr(at, "outputs", None)
        encode: Callable[..., Request] = partial(
            self._encode, at.tensors, outputs=outputs, request_id=self._label(payload)
        )
        check = self._check(payload.items, None if outputs is None else tuple(outputs))
        return encode(reader=check) if self._kind.stream else replace(encode(), check=check)

    @cache  # noqa: B019 - one for all requests that are answered alike: what it knows of one serves the others
    def _check(self, items: int, placed: tuple[str, ...] | None) -> Callable[..., Any]:
        """What holds answers to requests of so many rows against the model's outputs, or those in shared memory; for
        streams what makes their readers.
        """
        from loadgen.wire import kserve_grpc, kserve_http

        declared = declared_outputs(self._facts, items)
        if placed is not None:
            declared = {name: declared[name] for name in placed if name in declared}
        in_memory = placed is not None
        if self._target.protocol == "http":
            return partial(kserve_http.check_answer, declared, in_memory=in_memory)
        if self._kind.stream:
            return kserve_grpc.stream_reader(declared, in_memory=in_memory)
        return partial(kserve_grpc.check_answer, declared, in_memory=in_memory)

    def _label(self, payload: Payload) -> str | None:
        if not self._labelled:
            return None
        rows_axis = 1 if self._facts.max_batch_size else 0
        shapes = {t.name: t.shape[rows_axis:] for t in payload.tensors}
        return request_label(payload.items, payload.length, shapes)

    def _placed(self, built: list[Payload]) -> Sequence[Payload | InMemory]:
        """Where the kind asks for it, in shared memory."""
        asked = self._kind.shared_memory
        if self._memory is None or asked is None:
            return built
        given = asked.outputs if isinstance(asked.outputs, dict) else None
        sizes = [output_bytes(self._kind.name, self._facts, p.length, p.items, given) for p in built]
        return self._memory.place(
            self._kind.name, built, inputs=asked.inputs, outputs=sizes if asked.outputs else None
        )

    @cached_property
    def _encode(self) -> Callable[..., Any]:
        from loadgen.wire import kserve_grpc, kserve_http

        kind, sequence = self._kind, self._kind.sequence
        first = None if sequence is None else FIRST_ID if sequence.ids == "number" else _TEXT_ID
        if self._target.protocol == "http":
            encode: Any = partial(kserve_http.infer_request, binary=self._facts.binary)
        else:
            encode = kserve_grpc.stream_infer_request if kind.stream else kserve_grpc.infer_request
        return partial(encode, kind.model, kind.version, parameters=self._parameters, sequence=first)

    def facts(self, built: int) -> dict[str, Any]:
        files = self._data.told(built, self._kind.batch)
        return ({"files": files} if files else {}) | ({"remarks": self._remarks} if self._remarks else {})


class TextKind:
    """Chats, completions, and Triton's generate extension."""

    budget = _TEXT_BUDGET

    def __init__(
        self, kind: Kind, part: Chat | Completion | Generate, folder: Path, *, include_usage: bool
    ) -> None:
        self._kind, self._part, self._folder, self._include_usage = kind, part, folder, include_usage
        self._prefix: dict[str, Any] | None = None

    @cached_property
    def remarks(self) -> Sequence[str]:
        kind = self._kind
        has_output = kind.output is not None or kind.lengths is not None
        return prompt_remarks(kind.name, self._part, self._folder, has_output=has_output)

    @property
    def in_order(self) -> bool:
        return self._part.prompts is not None and self._part.prompts.order == "file"

    @property
    def unrepeated(self) -> bool:
        return self._part.prompts is None

    def most(self, asked: Sequence[Wanted]) -> int:
        if (
            fault := self._part.length_fault(has_length=any(w.length is not None for w in asked))
        ) is not None:
            raise LoadgenError(f"kind {self._kind.name!r}: {fault}")
        prompts = prompt_count(self._part, self._folder)
        return prompts or affordable(max((self.size(w) for w in asked), default=1), self.budget)

    def size(self, wanted: Wanted) -> int:
        return 300 + _BYTES_A_TOKEN * (wanted.length or 100)

    def messages(self, wanted: Sequence[Wanted], rng: np.random.Generator) -> list[Message]:
        kind = self._kind
        messages = build_texts(
            kind.model, kind.version, self._part, wanted, rng, self._folder, include_usage=self._include_usage
        )
        self._prefix = shared_prefix([message.request.body for message in messages])
        return _marked(kind, messages)

    def facts(self, built: int) -> dict[str, Any]:  # noqa: ARG002 - see KindMaker
        told = text_facts(self._part) | {"asks_for_usage": self._part.stream and self._include_usage}
        told |= {"shared_prefix": self._prefix}
        return told | ({"remarks": list(self.remarks)} if self.remarks else {})


class PlainKind:
    """Requests to any HTTP server."""

    remarks = ()
    in_order = unrepeated = False
    budget = BUDGET_BYTES

    def __init__(self, kind: Kind, http: HttpRequest, folder: Path) -> None:
        self._kind, self._http, self._folder = kind, http, folder
        self._bytes: dict[int, int] = {}  # of a body of each length that was measured

    def most(self, asked: Sequence[Wanted]) -> int:
        return http_body.most_variants(self._http, max(asked, key=_in, default=Wanted(None)), self._folder)

    def size(self, wanted: Wanted) -> int:
        """Between those of the powers of two around its length: as long, or longer where bodies grow faster than that."""
        n = _in(wanted)
        low = 1 << (n.bit_length() - 1) if n else 0
        size = self._measured(wanted, low)
        if n > low:
            size += (self._measured(wanted, 2 * low) - size) * (n - low) // low
        return 300 + size

    def _measured(self, wanted: Wanted, length: int) -> int:
        if length not in self._bytes:
            [message] = self.messages([replace(wanted, length=length or None)], np.random.default_rng(0))
            self._bytes[length] = len(message.request.body)
        return self._bytes[length]

    def messages(self, wanted: Sequence[Wanted], rng: np.random.Generator) -> list[Message]:
        messages = http_body.build(self._kind.name, self._http, wanted, rng, self._folder, self._kind.batch)
        return _marked(self._kind, messages)

    def facts(self, built: int) -> dict[str, Any]:  # noqa: ARG002 - see KindMaker
        return {}


def _in(wanted: Wanted) -> int:
    return wanted.length or 0
