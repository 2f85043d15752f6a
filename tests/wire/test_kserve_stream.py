"""Decoupled answers to a reader: what is an answer, what is the end, what is a failure."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from loadgen.records import Outcome, Tensor
from loadgen.wire.known import KnownAnswers
from loadgen.wire.kserve_grpc import (
    STREAM_METHOD,
    check_answer,
    infer_request,
    sequence_piece,
    stream_infer_request,
)
from loadgen.wire.kserve_stream import StreamReader, read_stream_response
from loadgen.workload.sequences import FIRST_ID, IDS, first_id, sequence_id, steps

TENSORS = (Tensor("x", "FP32", (1, 2), bytes(8)),)


def told(outputs=1, final=None, error="", raw=b"abcd", parameters=(), **more):
    message = pb.ModelStreamInferResponse(error_message=error)
    message.infer_response.SetInParent()
    answer = message.infer_response
    answer.model_name = "m"
    if final is not None:
        answer.parameters["triton_final_response"].bool_param = final
    for name in parameters:
        answer.parameters[name].bool_param = True
    for number in range(outputs):
        answer.outputs.add(name=f"o{number}", datatype="UINT8", shape=[len(raw)])
        answer.raw_output_contents.append(raw)
    for name, value in more.items():
        setattr(answer, name, value)
    return message.SerializeToString()


ANY = partial(check_answer, {}, partly=True)


def read(*messages, complete=True, known=None, check=ANY):
    reader = StreamReader(KnownAnswers() if known is None else known, check)
    for at, message in enumerate(messages):
        if not reader.finished:
            reader.feed(message, 100 + at)
    return reader.end(complete=complete), reader.streamed().chunk_ns, reader.finished


def test_five_answers_and_the_final_flag():
    """Field case 42."""
    ended, stamps, finished = read(*[told(final=False)] * 5, told(0, final=True))
    assert (ended, stamps, finished) == ((Outcome.OK, None), [100, 101, 102, 103, 104], True)


def test_no_answer_but_the_final_flag():
    """Field case 42: an empty final response is no answer."""
    assert read(told(0, final=True)) == ((Outcome.OK, None), [], True)


def test_answer_and_final_flag_in_one():
    """Field case 42."""
    assert read(told(final=False), told(final=True)) == ((Outcome.OK, None), [100, 101], True)


def test_a_stream_without_a_final_flag_ended_early():
    (outcome, words), stamps, finished = read(told(final=False), told())
    assert (outcome, stamps, finished) == (Outcome.STREAM_ENDED_EARLY, [100, 101], False)
    assert words == "the stream ended without a final response"
    assert read(complete=False)[0] == (Outcome.STREAM_ENDED_EARLY, "the stream broke off")


def test_a_failure_ends_it_and_what_came_before_is_kept():
    ended, stamps, finished = read(told(final=False), told(0, error="no\nmore"), told(final=True))
    assert (ended, stamps, finished) == ((Outcome.GRPC_STATUS, "no more"), [100], True)
    only = pb.ModelStreamInferResponse(error_message="alone").SerializeToString()
    assert read(only)[0] == (Outcome.GRPC_STATUS, "alone")


@pytest.mark.parametrize("words", ["[request id: 7] Exceeds maximum queue size", "Request timeout expired"])
def test_a_full_queue_and_a_wait_too_long_are_rejections(words):
    assert read(told(0, error=words))[0] == (Outcome.REJECTED, words)


def test_other_parameters_and_content_that_looks_like_the_flag():
    flag = told(final=True)
    ended, stamps, finished = read(told(raw=flag, final=False), told(raw=flag, parameters=["final", "x"]))
    assert (ended[0], stamps, finished) == (Outcome.STREAM_ENDED_EARLY, [100, 101], False)
    assert read(told(parameters=["a", "b"], final=True))[2]


def test_what_was_learned_of_one_answer_is_never_true_of_another():
    """Answers of the same size that differ before their content are read anew."""
    known = KnownAnswers()
    assert read(told(final=False), known=known)[1:] == ([100], False)
    assert len(known) == 1
    same_size = told(final=True)
    assert len(same_size) == len(told(final=False))
    assert read(told(final=False, raw=b"wxyz"), same_size, known=known) == ((Outcome.OK, None), [100, 101], True)  # fmt: skip
    more = told(0, final=False, raw=b"", id="x" * (len(same_size) - len(told(0, final=False)) - 2))
    assert len(more) == len(same_size)
    assert read(more, known=known)[1] == []


def test_streams_with_one_check_share_what_is_known_and_one_answer_in_4096_is_decoded():
    checked = []

    def check(headers, message):
        checked.append(message)
        return ANY(headers, message)

    make = partial(StreamReader, KnownAnswers(), check)
    requests = [stream_infer_request("m", "", TENSORS, request_id=name, reader=make) for name in "ab"]
    for now_ns in range(1, 3 * 4096):
        requests[now_ns % 2].reader().feed(told(final=False), now_ns)
    assert len(checked) == 3  # the first, and at 4096 and 8192


@given(st.binary(max_size=60), st.binary(max_size=60), st.booleans(), st.integers(0, 3), st.text(max_size=4))
def test_an_answer_known_or_not_is_read_alike(raw, other, final, outputs, request_id):
    """What was learned of one content holds of another of its size, and of no other message."""
    message = told(outputs, final=final, raw=raw, id=request_id)
    assert read_stream_response(message)[:3] == (outputs > 0, final, None)
    known = KnownAnswers()
    read(message, known=known)
    assert len(known) == (outputs > 0 and not final)
    alike = told(outputs, final=final, raw=other[: len(raw)].ljust(len(raw), b"x"), id=request_id)
    assert all(one.fits(alike) for one in known.values())
    assert read(alike, known=known) == read(alike)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [(1, None), (0, None), (2, "o1"), (3, "o1")],
)
def test_an_answer_is_held_against_the_models_outputs(outputs, said):
    declared = partial(check_answer, {"o0": ("UINT8", (4,)), "late": ("UINT8", (4,))}, partly=True)
    (outcome, words), stamps, _ = read(told(outputs, final=False), told(0, final=True), check=declared)
    assert outcome is (Outcome.OK if said is None else Outcome.PROTOCOL)
    assert len(stamps) == (outputs if said is None else 0)
    assert said is None or said in words


@pytest.mark.parametrize("broken", [b"\x12\x05ab", b"\x0a", b"\x08\x01", b"\x12\x02\x20\x01"])
def test_broken_messages_are_a_failure_of_this_request_only(broken):
    (outcome, words), stamps, finished = read(told(final=False), broken)
    assert (outcome, stamps, finished) == (Outcome.PROTOCOL, [100], True)
    assert words


def test_the_request_asks_for_the_final_flag():
    request = stream_infer_request("m", "2", TENSORS, parameters={"temperature": 0.5}, outputs=["o"])
    message = pb.ModelInferRequest.FromString(request.body)
    assert request.path == STREAM_METHOD == "inference.GRPCInferenceService/ModelStreamInfer"
    assert message.parameters["triton_enable_empty_final_response"].bool_param is True
    assert message.parameters["temperature"].double_param == 0.5
    assert (message.model_name, message.model_version, message.outputs[0].name) == ("m", "2", "o")
    one, other = request.reader(), request.reader()
    one.feed(told(final=False), 7)
    assert (one.streamed().chunk_ns, other.streamed().chunk_ns) == ([7], [])


@pytest.mark.parametrize("codec", [infer_request, stream_infer_request])
@given(nth=st.integers(0, IDS - 1), start=st.booleans(), end=st.booleans())
def test_a_sequences_parameters_go_into_the_slot(codec, nth, start, end):
    request = codec("m", "", TENSORS, parameters={"a": True}, sequence=FIRST_ID)
    piece = sequence_piece(FIRST_ID + nth, start=start, end=end)
    at, stop = request.slot
    assert len(piece) == stop - at
    message = pb.ModelInferRequest.FromString(request.body[:at] + piece + request.body[stop:])
    found = message.parameters
    assert found["sequence_id"].int64_param == FIRST_ID + nth
    assert (found["sequence_start"].bool_param, found["sequence_end"].bool_param) == (start, end)
    assert found["a"].bool_param is True
    assert message.raw_input_contents == [bytes(8)]


def test_ids_of_a_run_are_far_from_those_of_the_next():
    begun = [first_id(ns) for ns in range(10**18, 10**18 + 50)]
    assert len({first // 10**9 for first in begun}) == 50
    assert all(FIRST_ID <= first < FIRST_ID + IDS // 2 for first in begun)
    assert len({sequence_id(begun[0], nth) for nth in range(1000)}) == 1000


def test_steps_of_a_sequence():
    assert steps(1) == [(True, True)]
    assert steps(3) == [(True, False), (False, False), (False, True)]
