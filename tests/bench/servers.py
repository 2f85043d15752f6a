"""What the bench sends to: the real Triton's identity model, and servers that do nothing.

All are bound to loopback, on free ports, and ended by whoever started them.  Every server counts the
inferences it has answered: that is the denominator of every CPU per request, whoever sent them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from loadgen.triton.local import LocalTriton

MODEL = "identity"
MODELS = Path(__file__).parents[1] / "support" / "models"
_READY_S = 10.0

# Four bytes of "?" are the FP32 0.747...: a binary tensor that can stand in a configuration file.
_TENSOR = "?" * 64
_HEAD = (f'{{"model_name":"{MODEL}","model_version":"1","outputs":[{{"name":"OUTPUT","datatype":"FP32","shape":[1,16],'
         '"parameters":{"binary_data_size":64}}]}')  # fmt: skip
_INPUTS = '"inputs":[{"name":"INPUT","datatype":"FP32","shape":[-1,-1]}],"outputs":[{"name":"OUTPUT","datatype":"FP32","shape":[-1,-1]}]'
_CONFIG = (f'{{"name":"{MODEL}","platform":"","backend":"null","max_batch_size":8,"input":[{{"name":"INPUT","data_type":"TYPE_FP32",'
           '"dims":[-1]}],"output":[{"name":"OUTPUT","data_type":"TYPE_FP32","dims":[-1]}]}')  # fmt: skip
_NOTHING = '{"count":0,"ns":0}'
_STATS = ('{{"model_stats":[{{"name":"{}","version":"1","last_inference":0,"inference_count":0,"execution_count":0,'
          '"inference_stats":{{{}}},"batch_stats":[]}}]}}'.format(MODEL, ",".join(f'"{part}":{_NOTHING}' for part in (
              "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"))))  # fmt: skip
NGINX = """
worker_processes 1;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  default_type application/json;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_body_temp_path {prefix}/body;
  proxy_temp_path {prefix}/proxy;
  fastcgi_temp_path {prefix}/fastcgi;
  uwsgi_temp_path {prefix}/uwsgi;
  scgi_temp_path {prefix}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location = /v2/models/{model}/infer {{
      default_type application/octet-stream;
      add_header Inference-Header-Content-Length {head_size};
      return 200 '{infer}';
    }}
    location = /v2/models/{model}/versions/1/infer {{
      default_type application/octet-stream;
      add_header Inference-Header-Content-Length {head_size};
      return 200 '{infer}';
    }}
    location = /count {{ stub_status; }}
    location = /v2 {{ return 200 '{{"name":"null","version":"0","extensions":["binary_tensor_data","statistics","model_configuration"]}}'; }}
    location = /v2/ {{ return 200 '{{"name":"null","version":"0","extensions":["binary_tensor_data","statistics","model_configuration"]}}'; }}
    location /v2/health/ {{ return 200 ''; }}
    location ~ ^/v2/models/{model}(/versions/1)?/ready$ {{ return 200 ''; }}
    location ~ ^/v2/models/{model}(/versions/1)?/config$ {{ return 200 '{config}'; }}
    location ~ ^/v2/models/{model}(/versions/1)?/stats$ {{ return 200 '{stats}'; }}
    location ~ ^/v2/models/{model}(/versions/1)?$ {{ return 200 '{{"name":"{model}","versions":["1"],"platform":"null",{inputs}}}'; }}
    location / {{ return 404 '{{"error":"the null server has no such call"}}'; }}
  }}
}}
"""


class Server(AbstractContextManager["Server"]):
    """Where clients send, and what was answered so far."""

    name: str
    ports: dict[str, int]  # by protocol

    def count(self, protocol: str) -> int:
        """Inferences answered so far."""
        raise NotImplementedError

    def pids(self, protocol: str) -> list[int]:
        """Its processes, to see what it costs itself."""
        raise NotImplementedError

    def cpu_s(self, protocol: str) -> float:
        """User + system so far, to a hundredth of a second."""
        total = 0
        for pid in self.pids(protocol):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")


class RealTriton(Server):
    """The identity model without batching delay: the client is to be seen, not the batcher's patience."""

    name = "triton"

    def __enter__(self) -> Self:
        self._triton = LocalTriton(MODELS, models=[MODEL])
        self._triton.__enter__()
        self.ports = {"http": self._triton.facts.http_port, "grpc": self._triton.facts.grpc_port}
        config = json.loads(get(f"{self._triton.http_target}/v2/models/{MODEL}/config"))
        self._triton.load(MODEL, {**config, "dynamic_batching": {}})
        return self

    def __exit__(self, *why: object) -> None:
        self._triton.__exit__(None, None, None)

    def pids(self, protocol: str) -> list[int]:
        """The server, its keeper and the process of the python backend."""
        return family(self._triton.pid)

    def count(self, protocol: str) -> int:
        stats = json.loads(get(f"{self._triton.http_target}/v2/models/{MODEL}/stats"))
        return int(stats["model_stats"][0]["inference_stats"]["success"]["count"])


class Null(Server):
    """nginx with static replies for HTTP (left out when it is not installed), null_grpc.py for gRPC."""

    name = "null"

    def __enter__(self) -> Self:
        self._asked = 0
        self._folder = tempfile.TemporaryDirectory(prefix="loadgen-bench-")
        self.ports = {"grpc": self._start_grpc()}
        try:
            if shutil.which("nginx"):
                self.ports["http"] = self._start_nginx()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_grpc(self) -> int:
        command = [sys.executable, "-m", "tests.bench.null_grpc", MODEL]
        self._nginx: subprocess.Popen[bytes] | None = None
        self._grpc = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._grpc_says()

    def _grpc_says(self) -> int:
        assert self._grpc.stdout is not None
        line = self._grpc.stdout.readline()
        if not line:
            sys.exit("the null gRPC server ended")
        return int(line)

    def _start_nginx(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        prefix = self._folder.name
        config = Path(prefix) / "nginx.conf"
        config.write_text(NGINX.format(prefix=prefix, port=port, model=MODEL, head_size=len(_HEAD), infer=_HEAD + _TENSOR,
                                       config=_CONFIG, stats=_STATS, inputs=_INPUTS))  # fmt: skip
        command = ["nginx", "-p", prefix, "-c", str(config), "-e", f"{prefix}/error.log", "-g", "daemon off;"]
        self._nginx = subprocess.Popen(command)
        give_up = time.monotonic() + _READY_S
        while time.monotonic() < give_up and self._nginx.poll() is None:
            try:
                get(f"http://127.0.0.1:{port}/v2/health/ready")
            except OSError:
                time.sleep(0.02)
            else:
                return int(port)
        sys.exit(f"nginx did not start: {(Path(prefix) / 'error.log').read_text()[-500:]}")

    def __exit__(self, *why: object) -> None:
        assert self._grpc.stdin is not None
        self._grpc.stdin.close()
        self._grpc.wait(timeout=10)
        if self._nginx is not None:
            self._nginx.terminate()
            self._nginx.wait(timeout=10)
        self._folder.cleanup()

    def pids(self, protocol: str) -> list[int]:
        process = self._grpc if protocol == "grpc" else self._nginx
        return family(process.pid) if process is not None else []

    def count(self, protocol: str) -> int:
        if protocol == "grpc":
            assert self._grpc.stdin is not None
            self._grpc.stdin.write(b"\n")
            self._grpc.stdin.flush()
            return self._grpc_says()
        self._asked += 1  # nginx counts every request, ours too
        told = re.search(r"requests\s+\d+ \d+ (\d+)", get(f"http://127.0.0.1:{self.ports['http']}/count"))
        assert told is not None
        return int(told[1]) - self._asked


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        for children in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            todo += map(int, children.read_text().split())
    return found


def get(url: str) -> str:
    """Straight there: no proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return str(answer.read().decode())
