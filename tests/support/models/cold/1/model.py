"""A test model: the first execution of each length on each instance takes `cold_ms`, later ones `warm_ms`."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.cold_s, self.warm_s = (
            float(parameters[key]["string_value"]) / 1000 for key in ("cold_ms", "warm_ms")
        )
        self.seen = set()

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        lengths = {array.shape[1] for array in inputs}
        time.sleep(self.warm_s if lengths <= self.seen else self.cold_s)
        self.seen |= lengths
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array[:, :1].astype(np.float32))])
            for array in inputs
        ]
