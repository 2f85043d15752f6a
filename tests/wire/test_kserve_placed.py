"""Tensors in shared memory: the same messages as the official client writes."""

import json

import tritonclient.grpc as official
from tritonclient.grpc import service_pb2 as pb

from loadgen.records import Placed, Region, Tensor
from loadgen.wire import kserve_grpc, kserve_http

TENSORS = [
    Placed("a", "FP32", (1, 4), Region("r", 64, 16)),
    Tensor("b", "INT64", (1,), bytes(8)),
    Placed("c", "BYTES", (2,), Region("r", 0, 9)),
]
OUTPUTS = {"y": Region("out", 128, 16), "z": Region("out", 0, 4)}


def parameters(message):
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in message.parameters.items()
    }


def test_over_grpc():
    read = pb.ModelInferRequest.FromString(kserve_grpc.infer_request("m", "", TENSORS, outputs=OUTPUTS).body)
    assert list(read.raw_input_contents) == [bytes(8)]  # only of what is not placed
    theirs = []
    for tensor in TENSORS:
        one = official.InferInput(tensor.name, list(tensor.shape), tensor.datatype)
        if isinstance(tensor, Placed):
            one.set_shared_memory(tensor.region.name, tensor.region.size, tensor.region.offset)
        theirs.append(one._get_tensor())
    assert [(t.name, t.datatype, list(t.shape), parameters(t)) for t in read.inputs] == [
        (t.name, t.datatype, list(t.shape), parameters(t)) for t in theirs
    ]
    wanted = []
    for name, at in OUTPUTS.items():
        one = official.InferRequestedOutput(name)
        one.set_shared_memory(at.name, at.size, at.offset)
        wanted.append(one._get_tensor())
    assert [(o.name, parameters(o)) for o in read.outputs] == [(o.name, parameters(o)) for o in wanted]


def test_over_http():
    request = kserve_http.infer_request("m", "", TENSORS, outputs=OUTPUTS)
    size = int(dict(request.headers)["Inference-Header-Content-Length"])
    head = json.loads(request.body[:size])
    assert request.body[size:] == bytes(8)
    assert [tensor["parameters"] for tensor in head["inputs"]] == [
        {"shared_memory_region": "r", "shared_memory_byte_size": 16, "shared_memory_offset": 64},
        {"binary_data_size": 8},
        {"shared_memory_region": "r", "shared_memory_byte_size": 9},
    ]
    assert head["outputs"] == [
        {"name": "y", "parameters": {"shared_memory_region": "out", "shared_memory_byte_size": 16,
                                     "shared_memory_offset": 128}},
        {"name": "z", "parameters": {"shared_memory_region": "out", "shared_memory_byte_size": 4}},
    ]  # fmt: skip
    assert "parameters" not in head  # no answer in binary is asked for: outputs are named
