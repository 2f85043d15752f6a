"""A decoupled test model: answers 0 to N times, each after a delay, from a thread a request.

Styles: 0, the final flag comes alone; 1, in the last answer; 2, a failure comes in place of the end.
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            ask = pb_utils.get_input_tensor_by_name(request, "ASK").as_numpy()
            threading.Thread(target=answer, args=(request.get_response_sender(), *map(int, ask))).start()


def answer(sender, count, delay_ms, style):
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    for i in range(count):
        time.sleep(delay_ms / 1000)
        told = pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", np.array([i], np.int32))])
        if style == 1 and i == count - 1:
            sender.send(told, flags=final)
            return
        sender.send(told)
    if style == 2:
        sender.send(
            pb_utils.InferenceResponse(error=pb_utils.TritonError("the model ran out of words")), flags=final
        )
    else:
        sender.send(flags=final)
