"""A test model: asks the model `slow` for each request, one after the other, and gives back what it answers."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._one(request) for request in requests]

    def _one(self, request):
        tensor = pb_utils.Tensor("INPUT", pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy())
        asked = pb_utils.InferenceRequest(
            model_name="slow", requested_output_names=["OUTPUT"], inputs=[tensor]
        )
        answer = asked.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        output = pb_utils.get_output_tensor_by_name(answer, "OUTPUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", output)])
