"""A stateful test model: (sum, steps) of what each sequence sent so far, kept by its correlation id."""

import numpy as np
import triton_python_backend_utils as pb_utils


def flag(request, name):
    return bool(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        total, steps = -1, -1
        if flag(request, "READY"):
            who = request.correlation_id()
            before = (0, 0) if flag(request, "START") else self.sums.get(who, (-(10**9), -(10**9)))
            given = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().ravel()[0])
            total, steps = self.sums[who] = (before[0] + given, before[1] + 1)
            if flag(request, "END"):
                del self.sums[who]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SUM", np.array([[total]], np.int64)),
                pb_utils.Tensor("STEPS", np.array([[steps]], np.int64)),
            ]
        )
