"""Shared memory without a server: names, places, sizes, and what is refused."""

import itertools
import os

import pytest

from loadgen.connect.options import ConnectOptions
from loadgen.records import LoadgenError, ModelFacts, Payload, Tensor, TensorSpec
from loadgen.target import parse_target
from loadgen.triton import shared_memory
from loadgen.triton.shared_memory import FOLDER, SharedMemory, is_left_over, own_name
from loadgen.workload.fit import FitError
from loadgen.workload.outputs import output_bytes


def payload(*sizes):
    return Payload(
        tuple(Tensor(f"t{n}", "UINT8", (size,), os.urandom(size)) for n, size in enumerate(sizes)), None, 1
    )


@pytest.fixture
def memory():
    made = SharedMemory(parse_target("http://127.0.0.1:1"), ConnectOptions())
    yield made
    made.unlink()


def test_each_tensor_has_a_place_of_its_own(memory):
    payloads = [payload(1, 100), payload(64), payload(0, 3)]
    placed = memory.place("k", payloads, inputs=True, outputs=[{"y": 10}, {"y": 10}, {"y": 10, "z": 65}])
    tensors = [
        (tensor, at)
        for p, one in zip(payloads, placed, strict=True)
        for tensor, at in zip(p.tensors, one.tensors, strict=True)
    ]
    [name] = {at.region.name for _, at in tensors}
    content = (FOLDER / name).read_bytes()
    for tensor, at in tensors:
        assert (at.name, at.datatype, at.shape) == (tensor.name, tensor.datatype, tensor.shape)
        assert content[at.region.offset : at.region.offset + at.region.size] == tensor.data
    rooms = [at for one in placed for at in one.outputs.values()]
    for regions in ([at.region for _, at in tensors], rooms):
        spans = sorted((at.offset, at.offset + at.size) for at in regions)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(at.offset % 64 == 0 for at in regions)
    assert {at.name for at in rooms} != {name}
    assert (FOLDER / name).stat().st_mode & 0o777 == 0o600  # nobody else's to read
    assert memory.size == sum((FOLDER / region).stat().st_size for region in {name, rooms[0].name})
    memory.unlink()
    assert not (FOLDER / name).exists()


def test_either_side_alone(memory):
    [only_outputs] = memory.place("k", [payload(5)], inputs=False, outputs=[{"y": 1}])
    assert isinstance(only_outputs.tensors[0], Tensor)
    [only_inputs] = memory.place("k", [payload(5)], inputs=True, outputs=None)
    assert only_inputs.outputs is None
    assert memory.place("k", [], inputs=True, outputs=[]) == []


def test_too_little_memory_is_said_and_nothing_is_left(memory, monkeypatch):
    def ours():
        return {path.name for path in FOLDER.glob(f"loadgen-*-{os.getpid()}-*")}

    before = ours()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        LoadgenError, match=r"kind 'k': no shared memory for its tensors \(No space left.*left\)"
    ):
        memory.place("k", [payload(5)], inputs=True, outputs=None)
    assert ours() <= before


def test_only_servers_of_this_machine():
    for url in ("http://localhost:1", "grpc://127.0.0.2:1", "http://[::1]:1"):
        SharedMemory(parse_target(url), ConnectOptions())
    for url in ("http://example.org:1", "grpc://10.0.0.1:1", "http://127.example.org:1"):
        with pytest.raises(LoadgenError, match="needs a server on this machine"):
            SharedMemory(parse_target(url), ConnectOptions())


def test_whose_a_region_is(monkeypatch):
    mine = own_name()
    assert own_name() != mine
    assert not is_left_over(mine)
    space, pid, born, number = mine.split("-")[1:]
    assert is_left_over(f"loadgen-{space}-{pid}-{int(born) + 1}-{number}")  # the pid is another process's now
    assert is_left_over(f"loadgen-{space}-4194305-{born}-0")  # no such pid can be
    assert not is_left_over(f"loadgen-{int(space) + 1}-4194305-{born}-0")  # of another pid namespace
    assert not is_left_over("loadgen-of-mine")
    assert not is_left_over(f"x{mine}")
    monkeypatch.setattr(shared_memory, "born", lambda _: None)
    assert is_left_over(mine)


def facts(*specs, most=8):
    return ModelFacts("m", "", (), most, (), tuple(TensorSpec(*spec) for spec in specs))


def test_sizes_of_outputs_from_what_the_model_tells():
    told = facts(("logits", "FP16", (-1, 10)), ("ids", "INT64", (3,)), ("b", "BF16", ()))
    assert output_bytes("k", told, 7, 2) == {"logits": 2 * 7 * 10 * 2, "ids": 2 * 3 * 8, "b": 2 * 2}
    assert output_bytes("k", facts(("y", "BOOL", (-1,)), most=0), 7, 1) == {"y": 7}
    assert output_bytes("k", facts(("y", "FP32", (-1, 5)), most=None), None, 3) == {"y": 3 * 5 * 4}
    assert output_bytes("k", told, 7, 2, {"ids": 99}) == {"ids": 99}


@pytest.mark.parametrize(
    ("spec", "length"),
    [(("y", "BYTES", (1,)), 4), (("y", "FP32", (-1, -1)), 4), (("y", "FP32", (-1,)), None)],
)
def test_what_nobody_tells_is_asked_for(spec, length):
    with pytest.raises(
        FitError,
        match=r"kind 'k', model 'm': the bytes of output 'y' .* write shared_memory: {outputs: {y: 64KiB}}",
    ):
        output_bytes("k", facts(spec), length, 1)
    with pytest.raises(FitError, match="no output 'yy'"):
        output_bytes("k", facts(spec), length, 1, {"yy": 1})
    with pytest.raises(FitError, match="the server tells no outputs"):
        output_bytes("k", facts(), length, 1)
