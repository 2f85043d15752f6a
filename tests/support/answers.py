"""Answers of KServe v2 models, right and corrupted, as either protocol has them."""

import json

import numpy as np
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from loadgen.wire.kserve_http import join_bytes

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
NAMES = st.sampled_from(["y", "scores", "Ä"])


@st.composite
def answers(draw):
    """(name, datatype, shape, raw form) of each output."""
    found = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        datatype, shape = draw(st.sampled_from(["FP32", "INT64", "BYTES", "BF16", "BOOL"])), draw(SHAPES)
        n = int(np.prod(shape))
        if datatype == "BYTES":
            raw = join_bytes(draw(st.lists(st.binary(max_size=5), min_size=n, max_size=n)))
        else:
            size = n * {"FP32": 4, "INT64": 8, "BF16": 2, "BOOL": 1}[datatype]
            raw = draw(st.binary(min_size=size, max_size=size))
        found.append((name, datatype, shape, raw))
    return found


def as_http(outputs):
    heads = [
        {"name": n, "datatype": d, "shape": s, "parameters": {"binary_data_size": len(raw)}}
        for n, d, s, raw in outputs
    ]
    text = json.dumps({"model_name": "m", "outputs": heads}).encode()
    fields = {"inference-header-content-length": str(len(text))}
    return fields, text + b"".join(raw for *_, raw in outputs)


def as_grpc(outputs):
    message = pb.ModelInferResponse(model_name="m", id="7")
    for name, datatype, shape, raw in outputs:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_output_contents.append(raw)
    return {}, message.SerializeToString()


def declared(outputs):
    return {name: (datatype, shape) for name, datatype, shape, _ in outputs}


@st.composite
def corruptions(draw, body):
    """The same with a byte changed, left out, put in, or the end cut off."""
    at = draw(st.integers(0, max(len(body) - 1, 0)))
    how = draw(st.sampled_from(["change", "drop", "insert", "cut", "all"]))
    byte = bytes([draw(st.integers(0, 255))])
    if how == "all":
        return draw(st.binary(max_size=40))
    more = {"change": byte + body[at + 1 :], "drop": body[at + 1 :], "insert": byte + body[at:], "cut": b""}
    return body[:at] + more[how]
