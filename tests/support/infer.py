"""One inference over HTTP as JSON and over gRPC with the official client, whatever a tensor's type."""

import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np

NUMPY = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32, "BOOL": np.bool_}
NAMES = {np.dtype(kind): name for name, kind in NUMPY.items()}


def ask_http(server, model, feeds):
    """The first output, or the server's words where it refuses."""
    body = {
        "inputs": [
            {"name": name, "datatype": NAMES[a.dtype], "shape": list(a.shape), "data": a.ravel().tolist()}
            for name, a in feeds.items()
        ]
    }
    url = f"{server.http_target}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(body).encode()), timeout=30
        ) as answer:
            output = json.load(answer)["outputs"][0]
    except urllib.error.HTTPError as why:
        return json.load(why)["error"]
    return np.asarray(output["data"], NUMPY[output["datatype"]]).reshape(output["shape"])


def ask_grpc(server, model, feeds):
    """The same over gRPC."""
    from tritonclient.grpc import InferenceServerClient, InferInput
    from tritonclient.utils import InferenceServerException

    inputs = []
    for name, array in feeds.items():
        inputs.append(InferInput(name, list(array.shape), NAMES[array.dtype]))
        inputs[-1].set_data_from_numpy(array)
    with InferenceServerClient(server.grpc_target.removeprefix("grpc://")) as client:
        try:
            answer = client.infer(model, inputs)
        except InferenceServerException as why:
            return why.message()
        return answer.as_numpy(answer.get_response().outputs[0].name)


ASK = {"http": ask_http, "grpc": ask_grpc}


def together(server, protocol, model, requests):
    """All at once, answers in order."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda feeds: ASK[protocol](server, model, feeds), requests))


def executions(server, model):
    """{batch size: how often}, as the server counts it."""
    with urllib.request.urlopen(f"{server.http_target}/v2/models/{model}/stats", timeout=10) as answer:
        told = json.load(answer)["model_stats"][0]
    return {b["batch_size"]: b["compute_infer"]["count"] for b in told.get("batch_stats", [])}


def new_executions(server, model, before, items):
    """What was executed since `before`, as soon as it adds up to `items`: it is counted after the answer is sent."""
    deadline = time.monotonic() + 10
    while True:
        now = executions(server, model)
        since = {size: n - before.get(size, 0) for size, n in now.items() if n != before.get(size, 0)}
        if sum(size * n for size, n in since.items()) >= items or time.monotonic() > deadline:
            return since
        time.sleep(0.01)
