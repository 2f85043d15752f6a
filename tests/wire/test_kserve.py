"""KServe v2 bytes: the same requests and answers as the official messages and clients make and read."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import serialize_byte_tensor

from loadgen.records import LoadgenError, Tensor
from loadgen.wire import kserve_grpc, kserve_http
from loadgen.wire.errors import ProtocolError

NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
PARAMETERS = st.dictionaries(
    NAMES.filter(bool),
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | NAMES
    | st.floats(allow_nan=False, allow_infinity=False),
    max_size=4,
)
TENSORS = st.lists(
    st.builds(
        Tensor,
        NAMES.filter(bool),
        st.sampled_from(["FP32", "INT64", "BYTES", "BF16"]),
        st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
        st.binary(max_size=40),
    ),
    max_size=4,
)


def _value(parameter):
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


@given(NAMES, NAMES, TENSORS, NAMES, PARAMETERS, st.lists(NAMES.filter(bool), max_size=3))
def test_a_grpc_request_is_the_official_message(model, version, tensors, request_id, parameters, outputs):
    request = kserve_grpc.infer_request(
        model, version, tensors, request_id=request_id, parameters=parameters, outputs=outputs
    )
    read = pb.ModelInferRequest.FromString(request.body)
    assert (read.model_name, read.model_version, read.id) == (model, version, request_id)
    assert {k: _value(v) for k, v in read.parameters.items()} == parameters
    assert {k: type(_value(v)) for k, v in read.parameters.items()} == {
        k: type(v) for k, v in parameters.items()
    }
    heads = [(t.name, t.datatype, tuple(t.shape)) for t in read.inputs]
    assert heads == [(t.name, t.datatype, t.shape) for t in tensors]
    assert list(read.raw_input_contents) == [t.data for t in tensors]
    assert [o.name for o in read.outputs] == outputs
    if len(parameters) < 2:  # a map's order is not fixed
        assert pb.ModelInferRequest.FromString(read.SerializeToString()) == read
        assert len(read.SerializeToString()) == len(request.body)
    assert request.path == "inference.GRPCInferenceService/ModelInfer"


def test_a_grpc_message_of_2_gib_is_refused_with_its_size():
    class Huge(bytes):
        def __len__(self):
            return 2_254_857_830

    with pytest.raises(
        LoadgenError, match=r"2\.1 GiB \(22548578\d\d bytes\).*at most 2 GiB \(2147483647 bytes\)"
    ):
        kserve_grpc.infer_request("m", "", [Tensor("x", "UINT8", (1,), Huge(b""))])


def test_a_parameter_beyond_64_bits_is_refused():
    with pytest.raises(LoadgenError, match="sequence_id"):
        kserve_grpc.infer_request("m", "", [], parameters={"sequence_id": 2**63})


def _response(outputs, raw=None):
    message = pb.ModelInferResponse(model_name="m", model_version="1", id="i")
    message.parameters["triton_final_response"].bool_param = True
    for name, datatype, shape, field, values in outputs:
        output = message.outputs.add(name=name, datatype=datatype, shape=shape)
        if field:
            getattr(output.contents, field).extend(values)
    message.raw_output_contents.extend(raw or [])
    return message.SerializeToString()


def test_a_raw_grpc_answer():
    answer = _response(
        [("y", "FP32", [1, 2], None, []), ("z", "BYTES", [1], None, [])], [b"01234567", b"\1\0\0\0a"]
    )
    assert kserve_grpc.read_infer_response(answer) == [
        Tensor("y", "FP32", (1, 2), b"01234567"),
        Tensor("z", "BYTES", (1,), b"\1\0\0\0a"),
    ]


TYPED = [
    ("BOOL", "bool_contents", [True, False]), ("INT8", "int_contents", [-128, 127]), ("INT16", "int_contents", [-300, 5]),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1]), ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
    ("UINT8", "uint_contents", [0, 255]), ("UINT16", "uint_contents", [0, 65535]), ("UINT32", "uint_contents", [0, 2**32 - 1]),
    ("UINT64", "uint64_contents", [0, 2**64 - 1]), ("FP32", "fp32_contents", [0.5, -1e30]), ("FP64", "fp64_contents", [0.1, 1e300]),
]  # fmt: skip


@pytest.mark.parametrize(("datatype", "field", "values"), TYPED)
def test_a_typed_grpc_answer(datatype, field, values):
    (tensor,) = kserve_grpc.read_infer_response(_response([("y", datatype, [2], field, values)]))
    assert tensor.data == np.array(values, dtype=kserve_http.NUMPY[datatype]).tobytes()


def test_typed_bytes_in_a_grpc_answer():
    (tensor,) = kserve_grpc.read_infer_response(
        _response([("y", "BYTES", [2], "bytes_contents", [b"\xff", b""])])
    )
    assert tensor.data == b"\1\0\0\0\xff\0\0\0\0"


@given(st.binary(max_size=60))
def test_garbage_is_a_protocol_error_or_nothing_known(garbage):
    with contextlib.suppress(ProtocolError):
        kserve_grpc.read_infer_response(garbage)


@pytest.mark.parametrize("end", [1, 5, 20, 30])
def test_a_cut_grpc_answer_is_refused(end):
    answer = _response([("y", "FP32", [1, 2], None, [])], [b"01234567"])
    with pytest.raises(ProtocolError):
        kserve_grpc.read_infer_response(answer[:-end])


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ProtocolError, match=r"output y: 7 bytes do not fit FP32 \[1, 2\]"):
        kserve_grpc.read_infer_response(_response([("y", "FP32", [1, 2], None, [])], [b"0123456"]))
    with pytest.raises(ProtocolError, match="1 outputs, but 2 raw"):
        kserve_grpc.read_infer_response(_response([("y", "FP32", [], None, [])], [b"0123", b""]))


@pytest.mark.parametrize(
    ("model", "version", "path"),
    [
        ("m", "", "v2/models/m/infer"),
        ("m", "3", "v2/models/m/versions/3/infer"),
        ("a/b", "", "v2/models/a%2Fb/infer"),
        ("模型", "", "v2/models/%E6%A8%A1%E5%9E%8B/infer"),
        ("m:1 ?#", "1", "v2/models/m%3A1%20%3F%23/versions/1/infer"),
    ],
)
def test_the_path_of_a_model(model, version, path):
    assert kserve_http.infer_request(model, version, []).path == path


@pytest.mark.parametrize("model", ["", ".", ".."])
def test_a_name_that_a_url_would_lose_is_refused(model):
    with pytest.raises(LoadgenError, match="not a name that a URL can carry"):
        kserve_http.infer_request(model, "", [])


def test_an_http_request_is_binary_whatever_the_type():
    half = np.array([0.5, -2], np.float16).tobytes()
    text = kserve_http.join_bytes([b"\xff\xfe", "中文🙂".encode(), b""])
    assert text == serialize_byte_tensor(np.array([b"\xff\xfe", "中文🙂".encode(), b""], object)).item()
    request = kserve_http.infer_request(
        "m", "", [Tensor("x", "FP16", (1, 2), half), Tensor("s", "BYTES", (3,), text)],
        request_id="7", parameters={"priority": 2, "sequence_start": True},
    )  # fmt: skip
    size = int(dict(request.headers)["Inference-Header-Content-Length"])
    assert dict(request.headers)["Content-Type"] == "application/octet-stream"
    assert json.loads(request.body[:size]) == {
        "id": "7",
        "parameters": {"priority": 2, "sequence_start": True, "binary_data_output": True},
        "inputs": [
            {"name": "x", "datatype": "FP16", "shape": [1, 2], "parameters": {"binary_data_size": 4}},
            {"name": "s", "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(text)}},
        ],
    }
    assert request.body[size:] == half + text
    named = kserve_http.infer_request("m", "", [], outputs=["y"])
    assert json.loads(named.body) == {
        "inputs": [],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }


def test_an_http_request_as_json_for_servers_without_binary_tensors():
    texts = ["中文🙂".encode(), b"", b'a"b']
    tensors = [
        Tensor("f", "FP32", (1, 2), np.array([0.1, -2], "<f4").tobytes()),
        Tensor("i", "INT64", (2,), np.array([-(2**63), 2**63 - 1], "<i8").tobytes()),
        Tensor("b", "BOOL", (2,), b"\1\0"),
        Tensor("s", "BYTES", (3,), kserve_http.join_bytes(texts)),
        Tensor("e", "UINT8", (0,), b""),
    ]
    request = kserve_http.infer_request("m", "", tensors, parameters={"p": 1}, outputs=["y"], binary=False)
    assert request.headers == (("Content-Type", "application/json"),)
    head = json.loads(request.body)
    assert head["parameters"] == {"p": 1}
    assert head["outputs"] == [{"name": "y"}]
    values = {t["name"]: t["data"] for t in head["inputs"]}
    assert np.array(values.pop("f"), "<f4").tobytes() == tensors[0].data
    assert values == {"i": [-(2**63), 2**63 - 1], "b": [True, False], "s": ["中文🙂", "", 'a"b'], "e": []}
    assert [(t["datatype"], t["shape"]) for t in head["inputs"]] == [
        (t.datatype, list(t.shape)) for t in tensors
    ]


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (Tensor("x", "FP16", (1,), b"ab"), "FP16 has no JSON form"),
        (Tensor("x", "BF16", (1,), b"ab"), "BF16 has no JSON form"),
        (Tensor("x", "FP32", (1,), np.array([np.nan], "<f4").tobytes()), "FP32 holds NaN or infinity"),
        (
            Tensor("x", "BYTES", (1,), kserve_http.join_bytes([b"\xff\xfe"])),
            "BYTES holds bytes that are not UTF-8",
        ),
    ],
)
def test_what_has_no_json_form_is_refused(tensor, why):
    """Case 7 for BYTES: never sent as something else."""
    with pytest.raises(LoadgenError, match=f"input 'x': {why}.*use gRPC"):
        kserve_http.infer_request("m", "", [tensor], binary=False)


def _reply(outputs, raw=b"", *, binary=True):
    head = json.dumps({"model_name": "m", "outputs": outputs}).encode()
    return ({"inference-header-content-length": str(len(head))} if binary else {}), head + raw


def test_an_http_answer_binary_and_json_mixed():
    headers, body = _reply(
        [
            {"name": "y", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}},
            {"name": "j", "datatype": "INT64", "shape": [2, 2], "data": [[1, -2], [3, 4]]},
            {"name": "b", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
            {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["é", ""]},
        ],
        b"abcd" + b"\2\0\0\0hi",
    )
    assert kserve_http.read_infer_response(headers, body) == [
        Tensor("y", "FP32", (1, 1), b"abcd"),
        Tensor("j", "INT64", (2, 2), np.array([1, -2, 3, 4], "<i8").tobytes()),
        Tensor("b", "BYTES", (1,), b"\2\0\0\0hi"),
        Tensor("t", "BYTES", (2,), b"\2\0\0\0\xc3\xa9\0\0\0\0"),
    ]
    plain = _reply([{"name": "j", "datatype": "BOOL", "shape": [2], "data": [True, False]}], binary=False)
    assert kserve_http.read_infer_response(*plain) == [Tensor("j", "BOOL", (2,), b"\1\0")]


Y = {"name": "y", "datatype": "FP32", "shape": [1]}
BAD = {
    "no json": ({}, b"oops"),
    "no outputs": ({}, b"{}"),
    "list": ({}, b"[]"),
    "length no number": ({"inference-header-content-length": "x"}, b"{}"),
    "length too long": ({"inference-header-content-length": "99"}, b"{}"),
    "binary beyond the body": _reply([{**Y, "parameters": {"binary_data_size": 4}}], b"abc"),
    "binary negative": _reply([{**Y, "parameters": {"binary_data_size": -4}}], b"abc"),
    "binary of another size": _reply([{**Y, "parameters": {"binary_data_size": 3}}], b"abc"),
    "bytes left": _reply([{**Y, "parameters": {"binary_data_size": 4}}], b"abcde"),
    "no data": _reply([Y]),
    "too few values": _reply([{**Y, "shape": [2], "data": [1]}]),
    "no number": _reply([{**Y, "data": ["x"]}]),
    "outside the type": _reply([{**Y, "datatype": "INT8", "data": [300]}]),
    "unknown type": _reply([{**Y, "datatype": "FP8", "data": [1]}]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_http_answer_is_refused(name):
    with pytest.raises(ProtocolError):
        kserve_http.read_infer_response(*BAD[name])
