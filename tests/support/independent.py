"""KServe v2 servers that share no code with loadgen: the standard library's HTTP, grpcio's gRPC.  With or without TLS.

Each keeps the headers it saw.  `answer(model)` tells what becomes of an inference: None echoes the inputs as
outputs, a number of seconds does so later, (status, words) refuses.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

HEAD_LENGTH = "Inference-Header-Content-Length"


def echo(_model):
    return None


@contextmanager
def http_server(*, answer=echo, tls=None):  # noqa: C901 - a flat handler
    """Gives .port and .seen, a list of (path, headers)."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body leave together

        def setup(self):
            if tls is not None:
                self.request = tls.wrap_socket(self.request, server_side=True)
            super().setup()

        def log_message(self, *_):
            pass

        def reply(self, status, body, **headers):
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            seen.append((self.path, self.headers.items()))
            self.reply(
                200,
                json.dumps(
                    {"name": "independent", "version": "1", "extensions": ["binary_tensor_data"]}
                ).encode(),
            )

        def do_POST(self):
            seen.append((self.path, self.headers.items()))
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told = answer(self.path.split("/")[3])
            if isinstance(told, tuple):
                self.reply(told[0], json.dumps({"error": told[1]}).encode())
                return
            if told:
                time.sleep(told)
            at = int(self.headers[HEAD_LENGTH])
            head = json.loads(body[:at])
            outputs = [{**tensor, "name": "y" + tensor["name"]} for tensor in head["inputs"]]
            text = json.dumps({"model_name": "m", "outputs": outputs}).encode()
            self.reply(200, text + body[at:], **{HEAD_LENGTH: len(text)})

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_):
            pass  # clients that break off are the point

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield SimpleNamespace(port=server.server_address[1], seen=seen, url_scheme="https" if tls else "http")
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def grpc_server(*, answer=echo, credentials=None, port=0, workers=32):
    """Gives .port and .seen, a list of (method, metadata)."""
    import grpc
    from tritonclient.grpc import service_pb2 as pb

    seen = []

    def metadata(_, context):
        seen.append(("ServerMetadata", list(context.invocation_metadata())))
        return pb.ServerMetadataResponse(name="independent", version="1")

    def infer(request, context):
        seen.append(("ModelInfer", list(context.invocation_metadata())))
        told = answer(request.model_name)
        if isinstance(told, tuple):
            context.abort(*told)
        if told:
            time.sleep(told)
        reply = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        for one in request.inputs:
            reply.outputs.add(name="y" + one.name, datatype=one.datatype, shape=one.shape)
        reply.raw_output_contents.extend(request.raw_input_contents)
        return reply

    def method(function, name):
        asked, told = getattr(pb, name + "Request"), getattr(pb, name + "Response")
        return grpc.unary_unary_rpc_method_handler(function, asked.FromString, told.SerializeToString)

    handlers = {
        "ServerMetadata": method(metadata, "ServerMetadata"),
        "ModelInfer": method(infer, "ModelInfer"),
    }
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(ThreadPoolExecutor(workers), options=options)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)]
    )
    address = f"127.0.0.1:{port}"
    if credentials is None:
        bound = server.add_insecure_port(address)
    else:
        bound = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield SimpleNamespace(port=bound, seen=seen, url_scheme="grpcs" if credentials else "grpc")
    finally:
        server.stop(None).wait()
