"""A KServe v2 server over HTTP that does what a test tells it to: a real socket, a scripted mind.

Used where a real server cannot be made to misbehave on command (readiness that contradicts itself, a
storm of 429s, answers that never come).  The real Triton is in tests/live.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from aiohttp import web

from loadgen.wire.kserve_answer import SIZES


@dataclass
class Model:
    """One model of the mock; dims without the batch axis."""

    max_batch_size: int = 8
    dims: tuple[int, ...] = (-1,)
    datatype: str = "FP32"
    name: str = "INPUT"
    parameters: dict = field(default_factory=dict)
    ready: bool = True
    has_config: bool = True
    output: str = "OUTPUT"
    output_dims: tuple[int, ...] | None = None  # None: as `dims`

    def metadata(self, model):
        shape = ([-1] if self.max_batch_size else []) + list(self.dims)
        tensor = {"name": self.name, "datatype": self.datatype, "shape": shape}
        out = shape[:1] * bool(self.max_batch_size) + list(self._out)
        return {"name": model, "versions": ["1"], "platform": "mock", "inputs": [tensor],
                "outputs": [{**tensor, "name": self.output, "shape": out}]}  # fmt: skip

    def config(self, model):
        tensor = {"name": self.name, "data_type": f"TYPE_{self.datatype}", "dims": list(self.dims)}
        return {"name": model, "backend": "python", "max_batch_size": self.max_batch_size, "input": [tensor],
                "output": [{**tensor, "name": self.output, "dims": list(self._out)}], "dynamic_batching": {},
                "parameters": {k: {"string_value": v} for k, v in self.parameters.items()}}  # fmt: skip

    @property
    def _out(self):
        return self.dims if self.output_dims is None else self.output_dims

    def answer(self, model, head):
        """(head, body) of a right answer to a request with that JSON: zeros, in binary."""
        rows = head["inputs"][0]["shape"][:1] if self.max_batch_size else []
        shape = rows + [max(dim, 1) for dim in self._out]
        raw = bytes(math.prod(shape) * (4 if self.datatype == "BYTES" else SIZES[self.datatype]))
        output = {"name": self.output, "datatype": self.datatype, "shape": shape}
        output["parameters"] = {"binary_data_size": len(raw)}
        text = json.dumps({"model_name": model, "model_version": "1", "outputs": [output]}).encode()
        return {"Inference-Header-Content-Length": str(len(text))}, text + raw


class Mock:
    """`with Mock(...) as mock:` serves on 127.0.0.1 in a thread.

    `answer(n)` is asked for the n-th inference request (from 0): (delay in s, HTTP status, error text);
    a delay of None means that the answer never comes.
    """

    def __init__(self, answer=None, *, models=None, server_ready=True, statistics=True, tls=None, base=""):
        self.answer = answer or (lambda n: (0.0, 200, None))
        self.models = models if models is not None else {"m": Model()}
        self.server_ready, self.statistics, self.tls = server_ready, statistics, tls
        self.hang_statistics = False
        self.trace = None  # settings of the trace extension; written to file.0 when turned off
        self.traced = "[]"
        self.extensions = ["statistics", "binary_tensor_data"]
        self.bodies = None  # a list, to keep what was sent
        self.base = base  # a path in front of v2, e.g. /serving/x
        self.headers = []  # of every request, in order
        self.paths = []  # as they were sent, percent-encoded
        self.requests = 0
        self.rows = 0
        self.most_in_flight = self._in_flight = 0
        self.ok = 0
        self.target = ""
        self.extra_counts = 0  # what "another client" added
        self.control = None  # "explicit": models can be loaded and unloaded; "lies": it says so and does nothing; "none": Triton's
        self.load_s = 0.0
        self.counted_after_load = 0
        self.loads = []  # (model, configuration or None) of each load

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self, ready):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.tls)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.target = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}{self.base}"
        ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _handle(self, request):  # noqa: PLR0911 - one return a path
        self.headers.append(dict(request.headers))
        if not request.path.startswith(f"{self.base}/"):
            return web.Response(status=404)
        raw = request.rel_url.raw_path.removeprefix(self.base)
        self.paths.append(raw)
        parts = [unquote(part) for part in raw.strip("/").split("/")]
        if parts == ["v2"]:
            return web.json_response({"name": "mock", "version": "0", "extensions": self.extensions})
        if parts == ["v2", "health", "live"]:
            return web.Response()
        if parts == ["v2", "health", "ready"]:
            return web.Response(status=200 if self.server_ready else 503)
        if parts == ["v2", "repository", "index"]:
            return web.json_response(
                [
                    {"name": n, "version": "1", "state": "READY" if m.ready else "UNAVAILABLE"}
                    for n, m in self.models.items()
                ]
            )
        if parts[:3] == ["v2", "repository", "models"] and self.control:
            return await self._control(request, parts[3], parts[4])
        if parts[:2] == ["v2", "models"] and len(parts) >= 3:
            return await self._model(request, parts[2], parts[3:])
        return web.json_response({"error": f"no such path {request.path}"}, status=404)

    async def _model(self, request, name, rest):  # noqa: PLR0911 - one return a path
        model = self.models.get(name)
        if model is None:
            return web.json_response(
                {"error": f"Request for unknown model: '{name}' is not found"}, status=404
            )
        rest = rest[2:] if rest[:1] == ["versions"] else rest
        if rest == ["ready"]:
            return web.Response(status=200 if model.ready else 503)
        if not rest:
            return web.json_response(model.metadata(name))
        if rest == ["config"] and model.has_config:
            return web.json_response(model.config(name))
        if rest == ["stats"] and self.hang_statistics:
            await self._end.wait()
        if rest == ["stats"] and self.statistics:
            return web.json_response({"model_stats": [self._stats(name)]})
        if rest == ["trace", "setting"] and self.trace is not None:
            return await self._trace(request)
        if rest == ["infer"]:
            return await self._infer(request, name)
        return web.json_response({"error": "not supported"}, status=404)

    async def _trace(self, request):
        if request.method == "POST":
            asked = await request.json()
            if asked.get("trace_level") == ["OFF"] and self.traced is not None:
                path = Path(f"{self.trace['trace_file']}.0")
                path.write_text(self.traced)  # noqa: ASYNC240 - a test's few bytes
            self.trace |= {key: value for key, value in asked.items() if value is not None}
        return web.json_response(self.trace)

    async def _control(self, request, name, verb):
        """A loaded model whose configuration is not given anew is not loaded again, as in Triton."""
        if self.control == "none":
            said = "explicit model load / unload is not allowed if polling is enabled"
            return web.json_response({"error": said}, status=400)
        model = self.models[name]
        if verb == "unload":
            model.ready = False
            return web.json_response({})
        body = json.loads(await request.read() or b"{}")
        config = body.get("parameters", {}).get("config")
        self.loads.append((name, config and json.loads(config)))
        if self.control == "explicit" and (not model.ready or config):
            await asyncio.sleep(self.load_s)
            self.ok = self.counted_after_load
            self.requests = 0
        model.ready = True
        return web.json_response({})

    def _stats(self, name):
        n = self.ok + self.extra_counts
        each = {"count": n, "ns": n * 1000}
        fail = {"count": 0, "ns": 0}
        step = {"count": n, "ns": n * 1000}
        return {
            "name": name, "version": "1", "inference_count": n, "execution_count": n,
            "inference_stats": {"success": each, "fail": fail, "queue": each, "compute_input": each,
                                "compute_infer": each, "compute_output": each, "cache_hit": fail, "cache_miss": fail},
            "batch_stats": [{"batch_size": 1, "compute_input": step, "compute_infer": step, "compute_output": step}] if n else [],
        }  # fmt: skip

    async def _infer(self, request, name):
        model = self.models[name]  # which a script may take away meanwhile
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            body = await request.read()
            if self.bodies is not None:
                self.bodies.append(body)
            n, self.requests = self.requests, self.requests + 1
            delay, status, error = self.answer(n)
            if delay is None:
                await self._end.wait()
                return web.Response(status=500)
            if delay:
                await asyncio.sleep(delay)
            if status != 200:
                return web.json_response({"error": error or "mock says no"}, status=status)
            self.ok += 1
            size = request.headers.get("Inference-Header-Content-Length", len(body))
            headers, answer = model.answer(name, json.loads(body[: int(size)]))
            return web.Response(body=answer, headers=headers)
        finally:
            self._in_flight -= 1
