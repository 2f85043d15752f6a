"""A decoupled test model that writes words: `max_tokens` of them, from the tensor or the parameter of that name."""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def given(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().ravel()[0]


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            told = json.loads(request.parameters() or "{}")
            n = int(given(request, "max_tokens") or told.get("max_tokens", 3))
            text = given(request, "text_input").decode()
            streams = bool(given(request, "stream") or told.get("stream", False))
            threading.Thread(target=write, args=(request.get_response_sender(), text, n, streams)).start()


def write(sender, text, n, streams):
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    words = []
    for i in range(n):
        time.sleep(0.005)
        words.append(f"w{i}of{len(text.split())} ")
        if streams:
            sender.send(answer(words[-1]))
    if streams:
        sender.send(flags=final)
    else:
        sender.send(answer("".join(words)), flags=final)


def answer(text):
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_))]
    )
