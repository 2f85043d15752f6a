"""Pieces of a streamed gRPC answer, for scripted servers."""

from null_server import GRPC_HEAD, GRPC_TRAILERS, frame, grpc_message
from tritonclient.grpc import service_pb2 as pb


def response(outputs=1, *, final=False, error="", raw=b"abcd"):
    message = pb.ModelStreamInferResponse(error_message=error)
    message.infer_response.parameters["triton_final_response"].bool_param = final
    for _ in range(outputs):
        message.infer_response.outputs.add(name="o", datatype="UINT8", shape=[len(raw)])
        message.infer_response.raw_output_contents.append(raw)
    return message.SerializeToString()


ANSWER, LAST, EMPTY = response(), response(final=True), response(0, final=True)


def data(sid, *messages):
    """Each message in a DATA frame."""
    return b"".join(frame(0, 0, sid, grpc_message(message)) for message in messages)


def head(sid):
    return frame(1, 4, sid, GRPC_HEAD)


def trailers(sid, block=GRPC_TRAILERS):
    return frame(1, 5, sid, block)


def refusal(status, words):
    return b"\0\x0bgrpc-status" + bytes([len(str(status))]) + b"%d" % status + b"\0\x0cgrpc-message" + bytes([len(words)]) + words  # fmt: skip
