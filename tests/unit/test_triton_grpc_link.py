"""What the gRPC control plane keeps off the terminal."""

import logging

import loadgen.triton.grpc_link  # noqa: F401 - it filters


def told(caplog, message, why):
    caplog.clear()
    try:
        raise why
    except RuntimeError:
        logging.getLogger("asyncio").exception(message)
    return len(caplog.records)


def test_an_answer_to_a_loop_that_ctrl_c_closed_is_no_traceback(caplog):
    closed = RuntimeError("Event loop is closed")
    assert told(caplog, "Exception in callback PollerCompletionQueue._handle_events()()", closed) == 0
    assert told(caplog, "Exception in callback of ours()", closed) == 1
