"""A test model that tells the parameters of each request, after 100 ms."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        time.sleep(0.1)
        told = {"timeout": request.timeout(), "parameters": json.loads(request.parameters())}
        text = np.array([[json.dumps(told).encode()]], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)])
