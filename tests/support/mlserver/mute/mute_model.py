"""A test model for MLServer that declares no tensors: OUTPUT is INPUT."""

from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput


class Mute(MLModel):
    async def predict(self, payload):
        outputs = [
            ResponseOutput(name="OUTPUT", shape=tensor.shape, datatype=tensor.datatype, data=tensor.data)
            for tensor in payload.inputs
        ]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
