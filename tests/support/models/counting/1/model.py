"""A stateful test model that fails what is out of turn; it tells the steps of the sequence and how many are open."""

import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])


class TritonPythonModel:
    def initialize(self, args):
        self.open = {}  # id -> last value, steps

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        steps = 0
        if value(request, "READY"):
            who, given = request.correlation_id(), value(request, "INPUT")
            known = self.open.get(who)
            if value(request, "START"):
                if known is not None:
                    return failed(f"sequence {who} began twice")
                known = (given - 1, 0)
            elif known is None:
                return failed(f"sequence {who} was never begun")
            last, steps = known[0], known[1] + 1
            if given % 8 != (last + 1) % 8:
                return failed(f"sequence {who} has {given} after {last}")
            self.open[who] = (given, steps)
            if value(request, "END"):
                del self.open[who]
        told = {"STEPS": steps, "OPEN": len(self.open)}
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.array([[n]], np.int64)) for name, n in told.items()]
        )


def failed(words):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(words))
