"""An answer counts only when it was read: what is no answer of the model is told, known or not."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from loadgen.records import AnswerTemplate
from loadgen.wire import kserve_grpc, kserve_http
from loadgen.wire.errors import ProtocolError
from loadgen.wire.known import KnownAnswers
from loadgen.wire.kserve_http import join_bytes

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
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


WIRES = {
    "http": (as_http, kserve_http.check_answer, kserve_http.read_infer_response),
    "grpc": (as_grpc, kserve_grpc.check_answer, lambda _, body: kserve_grpc.read_infer_response(body)),
}
wires = pytest.mark.parametrize("wire", WIRES)


def heads(tensors):
    return [(t.name, t.datatype, t.shape) for t in tensors]


@wires
@given(answers())
def test_a_right_answer_is_right_and_leaves_what_is_like_it(wire, outputs):
    make, check, read = WIRES[wire]
    fields, body = make(outputs)
    template = check(declared(outputs), fields, body)
    assert isinstance(template, AnswerTemplate), template
    known = KnownAnswers()
    known.learn(HEAD, len(HEAD + body), template)
    assert known[len(HEAD + body)].fits(HEAD + body)
    assert heads(read(fields, body)) == [(n, d, s) for n, d, s, _ in outputs]


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


@wires
@given(st.data())
def test_a_corrupted_answer_is_a_failure_or_has_the_same_outputs(wire, data):
    """And whatever looks like a known answer decodes to one."""
    make, check, read = WIRES[wire]
    outputs = data.draw(answers())
    fields, body = make(outputs)
    known = KnownAnswers()
    known.learn(HEAD, len(HEAD + body), check(declared(outputs), fields, body))
    wrong = data.draw(corruptions(body))
    said = check(declared(outputs), fields, wrong)
    like = known.get(len(HEAD + wrong))
    if isinstance(said, str):
        assert said.strip()
        assert like is None or not like.fits(HEAD + wrong)
    else:
        by_name = sorted(heads(read(fields, wrong)))
        assert by_name == sorted((n, d, s) for n, d, s, _ in outputs)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html><body>Please log in</body></html>", "Please log in"),
        (b"", "the body is empty"),
        (b'{"error":"CUDA out of memory"}', "CUDA out of memory"),
        (b'{"error":"late","outputs":[]}', "late"),
        (b'{"model_name":"m","outputs":[{"name":"OUT","da', '{"model_name":"m"'),
        (b'{"model_name":"m","outputs":[]}', "without outputs"),
        (b'{"model_name":"m"}', "not a KServe v2 answer"),
        (b"[1,2]", "not a KServe v2 answer"),
        (b"null", "not a KServe v2 answer"),
        (b'{"outputs":[7]}', "without a name"),
        (b"\xff\xfe\0garbage", "garbage"),
        (b"[" * 100_000, "not a KServe v2 answer"),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[-1,-1],"data":[0]}]}', "shape"),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1.0],"data":[0]}]}', "shape"),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[true],"data":[0]}]}', "shape"),
    ],
)
def test_what_is_no_answer_over_http_is_said_with_its_first_words(body, words):
    said = kserve_http.check_answer({"y": ("FP32", (1,))}, {}, body)
    assert words in said
    assert len(said) < 450


JSON = {
    "FP32": ([0.5], [1], [float("nan")], ["x"], ["1.5"], [None], [True], [[1, 2]], [10**400], {}),
    "INT64": ([1], [-5], [2**63 - 1], [1.5], ["1"], [2**63], [None], [True], "7", None),
    "BOOL": ([True], [0], [1], ["no"], [None], [0.5], [[]], [1, 0], 3, True),
    "BYTES": (["a"], [""], ["中文🙂"], [1], [None], [b"a".hex(), ""], ["\ud800"], [["a", "b"]], [True], "a"),
}


@pytest.mark.parametrize("datatype", JSON)
def test_json_values_are_of_their_datatype(datatype):
    (*_,) = values = JSON[datatype]
    for place, data in enumerate(values):
        output = {"name": "y", "datatype": datatype, "shape": [1], "data": data}
        body = json.dumps({"outputs": [output]}).encode()
        said = kserve_http.check_answer({"y": (datatype, (1,))}, {}, body)
        assert isinstance(said, AnswerTemplate) == (place < 3), (data, said)


def one(name="y", datatype="FP32", shape=(2, 3), raw=bytes(24)):
    return (name, datatype, shape, raw)


@wires
@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([one()], None),
        ([one(shape=(2, 4), raw=bytes(32))], None),  # the model leaves that axis open
        ([one(shape=(1, 3), raw=bytes(12))], "declares FP32 [2, -1]"),  # rows of another request
        ([one(shape=(6,))], "declares FP32 [2, -1]"),
        ([one(datatype="INT32")], "INT32 [2, 3], but the model declares FP32"),
        ([one("z")], "no output 'y'"),
        ([one(), one("z")], "'z', which the model does not declare"),
        ([one(), one()], "twice"),
        ([one(raw=bytes(20))], "do not fit FP32 [2, 3]"),
        ([one(datatype="FLOAT")], "no KServe v2 datatype"),
    ],
)
def test_an_answer_is_held_against_the_models_outputs(wire, outputs, words):
    make, check, _ = WIRES[wire]
    fields, body = make(outputs)
    said = check({"y": ("FP32", (2, -1))}, fields, body)
    assert isinstance(said, AnswerTemplate) if words is None else words in said, said


@wires
def test_a_model_that_declares_nothing_must_answer_something(wire):
    make, check, _ = WIRES[wire]
    assert isinstance(check({}, *make([one()])), AnswerTemplate)
    assert "without outputs" in check({}, *make([]))


def test_a_compressed_body_is_named():
    fields = {"content-encoding": "gzip"}
    assert "'gzip' was not asked for" in kserve_http.check_answer({}, fields, b"\x1f\x8b\x08")


@pytest.mark.parametrize("wire", WIRES)
@given(raw=st.binary(max_size=30))
def test_elements_of_bytes_must_fill_their_tensor(wire, raw):
    """A known head does not make a known answer: each element has a length of its own."""
    make, check, _ = WIRES[wire]
    good = join_bytes([b"ab", b"c"]) + join_bytes([bytes(max(0, len(raw) - 15))])
    shape, size = (3,), len(good)
    raw = raw[:size].ljust(size, b"\0")
    fields, body = make([("y", "BYTES", shape, good)])
    known = KnownAnswers()
    known.learn(b"", len(body), check({"y": ("BYTES", shape)}, fields, body))
    _, other = make([("y", "BYTES", shape, raw)])
    right = isinstance(check({"y": ("BYTES", shape)}, fields, other), AnswerTemplate)
    assert known[len(other)].fits(other) == right


def test_outputs_in_shared_memory_come_without_bytes():
    text = (
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[2],"parameters":{"shared_memory_region":"r"}}]}'
    )
    message = pb.ModelInferResponse()
    message.outputs.add(name="y", datatype="FP32", shape=[2]).parameters[
        "shared_memory_region"
    ].string_param = "r"
    for check, body in (
        (kserve_http.check_answer, text),
        (kserve_grpc.check_answer, message.SerializeToString()),
    ):
        plain = check({"y": ("FP32", (2,))}, {}, body)
        assert "neither data nor" in plain
        in_memory = partial(check, in_memory=True)
        assert isinstance(in_memory({"y": ("FP32", (2,))}, {}, body), AnswerTemplate)
        assert "declares" in in_memory({"y": ("FP32", (3,))}, {}, body)


def test_what_is_known_is_bounded_and_prefers_the_last():
    known = KnownAnswers()
    for n in range(3000):
        known.learn(b"h", n, AnswerTemplate(b"%d" % n))
    assert len(known) <= 1024
    for n in range(20):
        known.learn(b"h", 5, AnswerTemplate(b"%02d" % n))
    assert known[5].prefixes == tuple(b"h%02d" % n for n in range(19, 11, -1))
    known.learn(b"", 6, AnswerTemplate(bytes(70_000)))
    assert 6 not in known


def test_reading_raises_for_outputs_that_are_not_here():
    body = (
        b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r"}}]}'
    )
    with pytest.raises(ProtocolError, match="output y"):
        kserve_http.read_infer_response({}, body)
