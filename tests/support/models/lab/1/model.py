"""A test model: sleeps `sleep_ms` (a parameter of its configuration) once a batch, then gives back INPUT."""

import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.sleep_s = float(parameters["sleep_ms"]["string_value"]) / 1000

    def execute(self, requests):
        time.sleep(self.sleep_s)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy())]
            )
            for request in requests
        ]
