"""A model on a running server as a rung of the ladder: tensors out, an answer back, over HTTP or gRPC.

It must not know what is compared, nor measure time.
"""

import http.client
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from loadgen.convert.encoder import first_line
from loadgen.convert.inputs import DATATYPES, NUMPY
from loadgen.convert.ladder import AT_ONCE
from loadgen.convert.parity import Feeds, Floats, ParityError, Run, as_numbers
from loadgen.records import Tensor
from loadgen.target import Target
from loadgen.wire import kserve_http
from loadgen.wire.statuses import UNAVAILABLE, says_full

_TIMEOUT_S = 60
_PATIENCE_S = 10  # without one answer from a model whose queue refuses
_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5


class _QueueError(ParityError):
    """The model's queue is full, or kept the request too long: HTTP 503, gRPC UNAVAILABLE."""


@contextmanager
def served_rungs(target: Target, model: str, version: str = "") -> Iterator[dict[str, Run]]:
    """Two rungs of a server: rows in one request, and each row as a request of its own, all at once.

    The second lets the server's own batcher put them together.  What the model's queue refuses is asked again, until
    nothing has been answered for 10 s.  They raise ParityError with the server's words.
    """
    ask = _grpc if target.protocol == "grpc" else _http
    with ThreadPoolExecutor(8) as pool, ask(target, model, version) as once:
        run = _patient(once)

        def together(feeds: Feeds) -> Floats:
            rows = len(next(iter(feeds.values())))
            one = [{name: value[at : at + 1] for name, value in feeds.items()} for at in range(rows)]
            return np.concatenate(list(pool.map(run, one)))

        yield {f"served, {target.protocol}": run, f"served, {target.protocol}, {AT_ONCE}": together}


def _patient(once: Run) -> Run:
    """Asks again what a queue refuses: the check itself may be more than a queue holds."""
    answered_s = 0.0

    def run(feeds: Feeds) -> Floats:
        nonlocal answered_s
        began_s, pause_s = time.monotonic(), _PAUSE_S
        while True:
            try:
                answer = once(feeds)
            except _QueueError as why:
                if time.monotonic() - max(began_s, answered_s) > _PATIENCE_S:
                    raise ParityError(
                        f"{why}; asked again for {_PATIENCE_S} s: the model's own queue options (--max-queue, --queue-timeout) "
                        "refuse this check, so ease them"
                    ) from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                answered_s = time.monotonic()
                return answer

    return run


def _refusal(target: Target, model: str, status: int, words: str) -> ParityError:
    kind = _QueueError if says_full(status, words) else ParityError
    return kind(f"parity: {target.url} refuses {model}: {words}")


@contextmanager
def _http(target: Target, model: str, version: str) -> Iterator[Run]:
    def run(feeds: Feeds) -> Floats:
        tensors = [
            Tensor(name, DATATYPES[value.dtype.name], value.shape, np.ascontiguousarray(value).tobytes())
            for name, value in feeds.items()
        ]
        request = kserve_http.infer_request(model, version, tensors)
        if target.tls:
            link: http.client.HTTPConnection = http.client.HTTPSConnection(
                target.host, target.port, timeout=_TIMEOUT_S, context=ssl.create_default_context()
            )
        else:
            link = http.client.HTTPConnection(target.host, target.port, timeout=_TIMEOUT_S)
        try:
            link.request("POST", f"{target.base_path}/{request.path}", request.body, dict(request.headers))
            answer = link.getresponse()
            body = answer.read()
        except OSError as why:
            raise ParityError(f"parity: {target.url} does not answer: {first_line(why)}") from None
        finally:
            link.close()
        if answer.status != http.client.OK:
            raise _refusal(
                target, model, answer.status, f"{answer.status} {body.decode(errors='replace')[:300]}"
            )
        headers = {name.lower(): value for name, value in answer.getheaders()}
        (first, *_) = kserve_http.read_infer_response(headers, body)
        if first.datatype not in NUMPY:
            raise ParityError(f"parity: {model} answers in {first.datatype}, which is not compared")
        kind = np.dtype(NUMPY[first.datatype]).newbyteorder("<")
        return as_numbers(np.frombuffer(first.data, kind).reshape(first.shape))

    yield run


@contextmanager
def _grpc(target: Target, model: str, version: str) -> Iterator[Run]:
    from tritonclient.grpc import InferenceServerClient, InferInput
    from tritonclient.utils import InferenceServerException

    with InferenceServerClient(target.authority, ssl=target.tls) as client:

        def run(feeds: Feeds) -> Floats:
            inputs: list[Any] = []
            for name, value in feeds.items():
                inputs.append(InferInput(name, list(value.shape), DATATYPES[value.dtype.name]))
                inputs[-1].set_data_from_numpy(np.ascontiguousarray(value))
            try:
                answer = client.infer(model, inputs, model_version=version, client_timeout=_TIMEOUT_S)
            except InferenceServerException as why:
                status = UNAVAILABLE if why.status() == "StatusCode.UNAVAILABLE" else 0
                raise _refusal(target, model, status, str(why.message())) from None
            return as_numbers(answer.as_numpy(answer.get_response().outputs[0].name))

        yield run
