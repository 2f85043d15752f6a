"""A LitServe server that collects requests into batches and takes 10 ms a batch."""

import sys
import time

import litserve as ls


class Sums(ls.LitAPI):
    def setup(self, device):
        self.device = device

    def decode_request(self, request):
        return request["input"]

    def predict(self, batch):
        time.sleep(0.01)
        return [sum(row) for row in batch]

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    api = Sums(max_batch_size=16, batch_timeout=0.005)
    ls.LitServer(api, accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False
    )
