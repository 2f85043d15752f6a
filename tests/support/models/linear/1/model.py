"""A test model whose time of an execution is a law: fixed_ms + token_us * rows * length."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.fixed_s = float(parameters["fixed_ms"]["string_value"]) / 1e3
        self.token_s = float(parameters["token_us"]["string_value"]) / 1e6

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        time.sleep(self.fixed_s + self.token_s * sum(array.size for array in inputs))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array[:, :1].astype(np.float32))])
            for array in inputs
        ]
