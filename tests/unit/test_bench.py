"""The bench's own instruments: packets into pairs, lateness, ratios, and the gRPC server that does nothing."""

import struct
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from loadgen.records import Tensor
from loadgen.wire import kserve_grpc
from loadgen.wire.hpack_lite import encode_call
from tests.bench import capture, compare, gpu_metrics, table
from tests.bench.compare import Group, Row
from tests.bench.null_grpc import Answers, NullGrpc

PORT = 8000
STEP = 1_000_000


class Wire:
    """Writes a nanosecond capture of one server's port, a millisecond a packet."""

    def __init__(self):
        self.data = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1)
        self.now = 10**18
        self.seq = {}

    def packet(self, client, payload, *, down=False, syn=False, lost=False, kept=None):
        key = (client, down)
        seq = self.seq.get(key, 4294967290)  # wraps soon
        self.seq[key] = (seq + len(payload) + syn) % 2**32
        self.now += STEP
        if lost:
            return
        ports = (PORT, client) if down else (client, PORT)
        tcp = struct.pack(">HHIIBBHHH", *ports, seq, 0, 5 << 4, 2 if syn else 16, 0, 0, 0)
        ip = struct.pack(
            ">BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0, b"\x7f\0\0\1", b"\x7f\0\0\1"
        )
        whole = bytes(12) + b"\x08\0" + ip + tcp + payload
        whole = whole[: len(whole) if kept is None else 54 + kept]
        self.data += struct.pack("<IIII", *divmod(self.now, 10**9), len(whole), len(whole)) + whole

    def save(self, path):
        path.write_bytes(self.data)
        return path


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def test_an_http_answer_lasts_to_its_last_packet_and_only_inferences_count(tmp_path):
    wire = Wire()
    wire.packet(5, b"GET /v2/health/ready HTTP/1.1\r\n\r\n")
    wire.packet(5, b"HTTP/1.1 200 OK", down=True)
    wire.packet(5, b"POST /v2/models/m/infer HTTP/1.1\r\n", kept=30)
    start = wire.now
    wire.packet(6, b"POST /v2/models/m/infer HTTP/1.1\r\n")  # never answered
    wire.packet(5, b"HTTP/1.1 200 OK", down=True)
    wire.packet(5, b"the body, after an early answer")
    wire.packet(5, b"more", down=True)
    wire.packet(5, b"POST /v2/models/m/infer HTTP/1.1\r\n")
    wire.packet(5, b"HTTP/1.1 200 OK", down=True)
    seen = capture.http_pairs(wire.save(tmp_path / "p"), PORT, b"POST /v2/models/m/")
    assert (seen.sent - start).tolist() == [0, 5 * STEP]
    assert (seen.done - seen.sent).tolist() == [4 * STEP, STEP]


def call(stream, message=b"x" * 40):
    return frame(1, 4, stream, b"\x83" * 20) + frame(0, 1, stream, message)


def answer(stream):
    return frame(1, 4, stream, b"\x88") + frame(0, 0, stream, b"y" * 30) + frame(1, 5, stream, b"ok")


@pytest.mark.parametrize("size", [3, 9, 10, 64, 10_000])
def test_grpc_calls_are_found_in_any_cutting(tmp_path, size):
    wire = Wire()
    wire.packet(5, b"", syn=True)
    wire.packet(5, b"", syn=True, down=True)
    up = bytes(24) + frame(4, 0, 0) + b"".join(map(call, (1, 3, 5))) + call(7, b"control")
    down = frame(4, 0, 0) + b"".join(map(answer, (3, 1, 7, 5)))
    sent = {}
    for at in range(0, len(up), size):
        wire.packet(5, up[at : at + size])
        for stream in (1, 3, 5):
            head = up.index(call(stream)) + 8  # its head is whole with its ninth byte
            if at <= head < at + size:
                sent[stream] = wire.now
    for at in range(0, len(down), size):
        wire.packet(5, down[at : at + size], down=True)
    seen = capture.grpc_pairs(wire.save(tmp_path / "p"), PORT)
    assert seen.sent.tolist() == sorted(sent.values())
    assert seen.done.max() <= wire.now
    assert seen.broken == 0


@pytest.mark.parametrize("how", [{"lost": True}, {"kept": 20}])
def test_a_connection_with_a_missing_packet_is_left_out_from_there_on(tmp_path, how):
    wire = Wire()
    for client in (5, 6):
        wire.packet(client, b"", syn=True)
        wire.packet(client, b"", syn=True, down=True)
        wire.packet(client, bytes(24) + call(1))
        wire.packet(client, answer(1), down=True)
        wire.packet(client, call(3), **(how if client == 5 else {}))
        wire.packet(client, answer(3), down=True)
        wire.packet(client, call(5))
        wire.packet(client, answer(5), down=True)
    seen = capture.grpc_pairs(wire.save(tmp_path / "p"), PORT)
    assert (seen.sent.size, seen.broken) == (4, 1)


def test_lateness_is_against_the_grid():
    due = np.arange(5) * 1000
    own = due + np.array([10, 20, 30, 400, 10])
    on_wire = own + 7_000_000 + np.array([6, 5, 5, 9, 5])  # another clock, and the cost of a write
    assert capture.lateness_of_records(on_wire, own, due).tolist() == [11, 20, 30, 404, 10]
    late, step = capture.lateness_of_grid(10**18 + np.arange(4) * 333_333_333 + np.array([50, 60, 50, 90]), 3)
    assert (late.tolist(), step) == ([0, 10, 0, 40], 333_333_333)


def cell(**more):
    return SimpleNamespace(**more, more={})


def test_ratios_are_medians_of_the_rounds_own_ratios_and_none_where_nothing_was_measured():
    group = Group("triton", "http", users=32)
    ours = Row(group, "loadgen", [cell(cpu_us=c, rps=r) for c, r in ((10, 100), (30, 100), (20, 300))])
    theirs = Row(group, "perf_analyzer", [cell(cpu_us=c, rps=r) for c, r in ((20, 50), (30, 100), (80, 100))])
    theirs.cells[1] = None
    told = table.ratios([ours, theirs])
    assert told["http"] == {"cpu_vs_perf_analyzer": 0.375, "cpu_vs_wrk": None, "rps_vs_perf_analyzer": 2.5}
    assert told["grpc"] == {"cpu_vs_perf_analyzer": None, "rps_vs_perf_analyzer": None}
    assert told["open_3000"] == dict.fromkeys(
        ("lag_p99_us", "lag_p99_us_realtime", "lag_p99_us_perf_analyzer")
    )
    assert (told["workers_2_vs_1"], told["rounds"]) == (None, 3)
    assert told["spread"]["http.cpu_vs_perf_analyzer"] == {
        "median": 0.375,
        "min": 0.25,
        "max": 0.5,
        "rounds": 2,
    }


def test_every_ratio_has_its_cells_in_what_is_run():
    for quick in (True, False):
        todo = compare.groups(quick=quick, can_capture=True)
        for wanted in [("triton", "http", "32 users", False), ("triton", "grpc", "32 users", False),
                       ("null", "grpc", "128 users", False), ("null", "http", "3000/s", True)]:  # fmt: skip
            rounds = [n for g, n in todo if (g.server, g.protocol, g.load, g.captured) == wanted]
            assert len(rounds) == 1
            assert quick or rounds[0] >= 5
    assert not any(g.captured for g, _ in compare.groups(quick=False, can_capture=False))


def test_the_null_grpc_server_answers_the_same_in_any_cutting():
    request = kserve_grpc.infer_request("m", "", (Tensor("INPUT", "FP32", (1, 16), bytes(64)),))
    block = encode_call("/" + request.path.lstrip("/"), "h:1", tls=False, metadata=request.headers)
    message = b"\0" + len(request.body).to_bytes(4, "big") + request.body
    calls = [frame(1, 4, s, block) + frame(0, 1, s, message) for s in range(1, 401, 2)]
    calls.insert(100, frame(6, 0, 0, b"pingpong"))
    told = []
    for size in (1, 100, 10**6):
        answers, written = Answers("m"), []
        server = NullGrpc(answers)
        server.connection_made(SimpleNamespace(write=written.append))
        server.data_received(bytes(24) + frame(8, 0, 0, (10**6).to_bytes(4, "big")) + calls[0])
        data = b"".join(calls[1:])
        for at in range(0, len(data), size):
            server.data_received(data[at : at + size])
        assert answers.inferences == 200
        told.append(b"".join(written))
    assert told[0] == told[1] == told[2]
    assert [told[0].count(s.to_bytes(4, "big") + b"\0") for s in (1, 399)] == [
        2,
        2,
    ]  # message and end of each


def test_the_null_grpc_server_answers_grpcio_and_counts():
    import tritonclient.grpc as grpcclient

    command = [sys.executable, "-m", "tests.bench.null_grpc", "m"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        port = int(process.stdout.readline())
        with grpcclient.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.is_server_live()
            assert client.is_model_ready("m")
            assert client.get_model_config("m", as_json=True)["config"]["max_batch_size"] == 8
            tensor = grpcclient.InferInput("INPUT", [1, 16], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
            for _ in range(40):  # the first ones fill the header table, later ones take the short way
                assert client.infer("m", [tensor]).as_numpy("OUTPUT").shape == (1, 16)
            stats = client.get_inference_statistics("m", as_json=True)["model_stats"][0]
            assert stats["inference_stats"]["success"]["count"] == "40"
            with pytest.raises(grpcclient.InferenceServerException, match="UNIMPLEMENTED"):
                client.get_trace_settings()
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == 40
        process.stdin.close()
        assert process.wait(timeout=10) == 0


SMI = """GPU-5f2a, 37, 1234, 312.45
GPU-77b0, 5, 20, [N/A]
No devices were found
"""


def test_nvidia_smi_is_read_and_summed():
    gpus = gpu_metrics.read_smi(SMI)
    assert [(g.uuid, g.utilisation, g.memory_bytes, g.power_w) for g in gpus] == [
        ("GPU-5f2a", 0.37, 1234 * 2**20, 312.45),
        ("GPU-77b0", 0.05, 20 * 2**20, None),
    ]
    both = gpu_metrics.total(gpus)
    assert (both.utilisation, both.memory_bytes) == (pytest.approx(0.21), 1254 * 2**20)
    assert np.isnan(both.power_w)


def test_power_over_time_is_energy():
    """100 W rising to 200 W at 1 s, then constant; the ends hold the nearest sample."""
    at = [
        gpu_metrics.Sample(round(t * 1e9), 0, 0, watts)
        for t, watts in ((0, 100), (1, 200), (2, 200), (9, 900))
    ]
    assert gpu_metrics.joules(at, 0, 3 * 10**9) == pytest.approx(150 + 200 + 200)
    assert np.isnan(gpu_metrics.joules([], 0, 1))


def test_gpu_figures_that_lie_apart_are_called_so(capsys):
    same = {"utilisation": 0.5, "memory_bytes": 2e9, "power_w": 300}
    assert gpu_metrics.compare("x", same, same | {"power_w": 310, "utilisation": float("nan")})
    assert "not compared" in capsys.readouterr().out
    assert not gpu_metrics.compare("x", same, same | {"memory_bytes": 3e9})
    assert "x: memory_bytes: ours 2e+09, nvidia-smi 3e+09: DIFFER" in capsys.readouterr().out
