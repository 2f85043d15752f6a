"""Plain HTTP servers before the run: ready when they say so, in words when they do not."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadgen.connect.options import ConnectOptions
from loadgen.lab.plain import plain_facts
from loadgen.records import LoadgenError
from loadgen.target import parse_target
from loadgen.traffic.http_request import HttpRequest
from loadgen.triton.links import NoServerError


@contextmanager
def server(statuses, port=0):
    """Answers the n-th GET with the n-th status, the last one for ever; yields (port, paths asked)."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            body = (
                b"loading\nweights"
                if (status := statuses[min(len(paths), len(statuses)) - 1]) >= 400
                else b""
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield httpd.server_port, paths
        finally:
            httpd.shutdown()
            thread.join()


def facts(port, wait_s=0.0, scheme="http", base="", **kinds):
    http = {name: HttpRequest.model_validate({"path": "/predict", **over}) for name, over in kinds.items()}
    target = parse_target(f"{scheme}://127.0.0.1:{port}{base}")
    return asyncio.run(plain_facts(http, target, ConnectOptions(), int(wait_s * 1e9)))


def test_a_server_is_waited_for_until_it_says_what_was_asked_for():
    ready = {"path": "/healthz?full=é", "status": [200, 204]}
    with server([503, 500, 204]) as (port, paths):
        told = facts(port, 10, base="/app", a={"ready": ready}, b={"ready": ready, "method": "GET"}, c={})
    assert paths == ["/app/healthz?full=%C3%A9"] * 3  # one question for both kinds
    assert told["requests"] == {
        "a": {"method": "POST", "path": "/predict", "ready": "GET /app/healthz?full=%C3%A9: 204"},
        "b": {"method": "GET", "path": "/predict", "ready": "GET /app/healthz?full=%C3%A9: 204"},
        "c": {"method": "POST", "path": "/predict", "ready": "not asked"},
    }


def test_a_server_that_is_not_ready_is_told_with_its_words():
    with server([503]) as (port, paths), pytest.raises(LoadgenError) as caught:
        facts(port, a={"ready": {"path": "health"}})
    assert str(caught.value) == (
        f"the server at http://127.0.0.1:{port} is not ready: GET /health answered 503, wanted 200: loading weights"
    )
    assert paths == ["/health"]
    with (
        server([503]) as (port, paths),
        pytest.raises(LoadgenError, match=r"^after 0\.3 s of waiting: the server"),
    ):
        facts(port, 0.3, a={"ready": {"path": "health"}})
    assert len(paths) > 1


def test_a_server_that_is_not_there_yet_is_waited_for_too():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(NoServerError, match="connection refused"):
        facts(port, a={"ready": {"path": "/health"}})
    started, over = threading.Event(), threading.Event()

    def late():
        time.sleep(0.2)
        with server([200], port):
            started.set()
            over.wait(20)

    thread = threading.Thread(target=late)
    thread.start()
    try:
        told = facts(port, 10, a={"ready": {"path": "/health"}})
    finally:
        over.set()
        thread.join()
    assert started.is_set()
    assert told["requests"]["a"]["ready"] == "GET /health: 200"


def test_nothing_is_asked_of_a_server_whose_kinds_name_no_question():
    assert facts(1, a={})["requests"]["a"]["ready"] == "not asked"  # nobody listens there


def test_grpc_is_no_place_for_plain_http():
    with pytest.raises(
        LoadgenError, match="kind 'a': plain HTTP requests need an http:// or https:// target"
    ):
        facts(8001, scheme="grpc", a={})
