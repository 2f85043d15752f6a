"""The server along a run: use, pending, resets, the split of its time, from looks that are given."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from loadgen.analysis.summary import summarise
from loadgen.environment.nvml import Nvml
from loadgen.lab.watch_process import gpu_metrics, metrics_of, process_use
from loadgen.report.words import time_line, use_line
from tests.support.runs import MS, S, build, phase, row, statistics, window

PAGE = """# HELP nv_inference_pending_request_count Instantaneous number of pending requests
nv_inference_pending_request_count{model="m",version="1"} 7
nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 3
nv_inference_count{model="m",version="1"} 900
nv_gpu_power_usage{gpu_uuid="GPU-1"} 70.5
process_start 1e9
"""


def test_of_a_metrics_page_only_what_is_wanted():
    assert metrics_of(PAGE) == {
        'nv_inference_pending_request_count{model="m",version="1"}': 7,
        'nv_inference_request_failure{model="m",reason="REJECTED",version="1"}': 3,
        'nv_gpu_power_usage{gpu_uuid="GPU-1"}': 70.5,
    }


def test_a_process_and_its_use():
    cpu_ns, memory = process_use(os.getpid())
    assert cpu_ns > 0
    assert memory > 10_000_000
    assert process_use(2**22 + 1) is None


def test_a_child_that_ends_while_it_is_read_takes_only_itself_along(monkeypatch):
    cat = ["cat"]
    with (
        subprocess.Popen(cat, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent,
        subprocess.Popen(cat, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        for one in (parent, child):  # once it has answered it stays as large as it is
            one.stdin.write(b"x\n")
            one.stdin.flush()
            assert one.stdout.readline() == b"x\n"
        own, others, real = process_use(parent.pid)[1], process_use(child.pid)[1], Path.read_text

        def read(path, *args, **keys):
            mine = path.name == "children" and path.parts[2] == str(parent.pid)
            return f"{2**22 + 1} {child.pid} {2**22 + 2} " if mine else real(path, *args, **keys)

        monkeypatch.setattr(Path, "read_text", read)
        assert process_use(parent.pid)[1] == own + others > own > 0


def look(t_s, stats=None, pending=None, cpu_s=None, rejected=None):
    line = {"t_ns": round(t_s * S), "stats": []}
    if stats is not None:
        line["stats"] = [{"t_ns": round(t_s * S), "model": "m", "version": "1", "stats": stats}]
    if pending is not None:
        line["metrics"] = {
            'nv_inference_pending_request_count{model="m",version="1"}': pending,
            'nv_inference_request_failure{model="m",reason="REJECTED",version="1"}': rejected or 0,
        }
    if cpu_s is not None:
        line |= {"cpu_ns": round(cpu_s * S), "memory_bytes": 10**8 + t_s}
    return line


def run(path, looks, **keys):
    rows = [row(i * 10 * MS, 20 * MS) for i in range(1000)]
    told = phase(planned=1000, duration_ns=10 * S, start_ns=0, load_end_ns=10 * S, end_ns=10 * S)
    built = build(path, rows, [told], **keys)
    folder = built if hasattr(built, "joinpath") else path
    (folder / "watch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in looks))
    return summarise(built)["server"]


def test_what_was_seen_on_the_way(tmp_path):
    looks = [look(2, statistics({1: 100}), 4, 1.0), look(4, statistics({1: 100, 4: 100}), 8, 4.0, 5),
             look(6, statistics({1: 50}), 0, 5.0, 7), look(8), look(99, statistics({1: 51}), 900, 9.0)]  # fmt: skip
    seen = run(tmp_path / "run", looks)["watched"]
    assert seen["looks"] == 4  # the one after the load is in no figure
    assert seen["cpu_cores"] == 1.0  # 4 s of CPU in 4 s
    assert seen["memory_bytes"] == 10**8 + 6
    assert seen["pending"] == {"mean": 4.0, "max": 8}
    assert seen["rejected"] == {"REJECTED": 7}
    assert seen["resets"] == [{"model": "m", "t_ns": 6 * S}]  # counters fell: it was loaded anew
    assert [point["mean_batch"] for point in seen["timeline"]] == [4.0, None]
    assert seen["gpu"] is None


def test_a_reload_makes_no_negative_count_and_a_gap_between_phases_is_in_no_figure(tmp_path):
    """Two measured phases, 0 to 4 s and 6 to 10 s; what happened between them belongs to neither."""
    rows = [row(i * 10 * MS, 20 * MS, phase=int(i >= 500)) for i in range(1000)]
    phases = [phase("a", duration_ns=4 * S, start_ns=0, load_end_ns=4 * S, end_ns=4 * S),
              phase("b", duration_ns=4 * S, start_ns=6 * S, load_end_ns=10 * S, end_ns=10 * S)]  # fmt: skip
    looks = [look(1, statistics({1: 10}), 0, 1.0, 9), look(3, statistics({1: 30}), 0, 2.0, 11),
             look(5, statistics({1: 500}), 0, 90.0, 400),
             look(7, statistics({1: 600}), 0, 91.0, 500), look(9, statistics({1: 5}), 0, 91.5, 3),
             look(9.5, statistics({1: 10}), 0, 12.0, 4)]  # fmt: skip
    folder = build(tmp_path / "run", rows, phases)
    (folder / "watch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in looks))
    seen = summarise(folder)["server"]["watched"]
    assert seen["rejected"] == {"REJECTED": 2 + 3 + 1}  # 9 to 11, anew to 3, 3 to 4
    assert seen["cpu_cores"] == 0.375  # 1 s in 2 s, 0.5 s in 2 s; the pair that fell tells nothing
    assert seen["resets"] == [{"model": "m", "t_ns": 9 * S}]
    points = [(point["t_ns"], point["ok_per_s"]) for point in seen["timeline"]]
    assert points == [(3 * S, 10), (9 * S, None), (9.5 * S, 10)]


def test_an_ensemble_has_no_batches_along_the_way_either(tmp_path):
    looks = [look(2, statistics({1: 10})), look(4, statistics({1: 50}))]
    config = {"ensemble_scheduling": {"step": [{"model_name": "pre", "model_version": -1}]}}
    found = run(tmp_path / "run", looks, facts={"models": {"m": {"config": config}}})
    points = found["watched"]["timeline"]
    assert [(point["mean_batch"], point["queue_ns"]) for point in points] == [(None, None)] * len(points)
    assert points[0]["ok_per_s"] == 20


def test_a_look_that_failed_is_no_reload(tmp_path):
    """Two models; the second could not be read once, and goes on where it was."""

    def both(t_s, n, second=True):
        line = look(t_s, statistics({1: n}))
        other = {"t_ns": t_s * S, "model": "n", "version": "1", "stats": statistics({1: 2 * n}, model="n")}
        return line | {"stats": line["stats"] + [other] * second} | ({} if second else {"why": "no answer"})

    seen = run(tmp_path / "run", [both(2, 10), both(4, 20, second=False), both(6, 30)])["watched"]
    assert (seen["resets"], seen["failed_looks"]) == ([], 1)
    assert [point["ok_per_s"] for point in seen["timeline"]] == [5, 15]  # 10 in 2 s; and 40 in 4 s


GPU_PAGE = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{{gpu_uuid="GPU-a"}} {used}
nv_gpu_utilization{{gpu_uuid="GPU-b"}} 0
nv_gpu_memory_total_bytes{{gpu_uuid="GPU-a"}} 150754820096
nv_gpu_memory_used_bytes{{gpu_uuid="GPU-a"}} 2000000000
nv_gpu_memory_used_bytes{{gpu_uuid="GPU-b"}} 500000000
nv_gpu_power_usage{{gpu_uuid="GPU-a"}} {power}
nv_gpu_power_usage{{gpu_uuid="GPU-b"}} 75.5
nv_gpu_power_limit{{gpu_uuid="GPU-a"}} 700
nv_energy_consumption{{gpu_uuid="GPU-a"}} {energy}
nv_energy_consumption{{gpu_uuid="GPU-b"}} 1000.5
"""


def test_gpus_and_the_energy_of_a_request(tmp_path):
    """Two GPUs, 100 answers a second: means of what is used, sums of memory and power, joules over successes."""

    def at(t_s, **told):
        return {"t_ns": t_s * S, "stats": [], "metrics": metrics_of(GPU_PAGE.format(**told))}

    looks = [at(2, used=0.5, power=300, energy=5000), at(4, used=0.9, power=500, energy=5600)]
    gpu = run(tmp_path / "run", looks)["watched"]["gpu"]
    assert gpu == {
        "utilisation": 0.35, "memory_bytes": 2.5e9, "power_w": 475.5, "energy_j": 600, "energy_j_per_request": 3,
    }  # fmt: skip
    lost = [
        at(2, used=0, power=1, energy=9e9),
        at(4, used=0, power=1, energy=5),
        at(6, used=0, power=1, energy=15),
    ]
    assert run(tmp_path / "2", lost)["watched"]["gpu"]["energy_j"] == 10  # its driver was loaded anew
    assert "energy_j" not in run(tmp_path / "3", lost[:1])["watched"]["gpu"]


class FakeNvml:
    """The C library, with one GPU that tells all and one that has no counter of energy."""

    def nvmlInit_v2(self):  # noqa: N802 - the library\'s
        return 0

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802 - the library\'s
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802 - the library\'s
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, answer):  # noqa: N802 - the library\'s
        answer._obj[0], answer._obj[1] = 40, 7
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, handle, answer):  # noqa: N802 - the library's
        assert answer._obj.version == 0x2000028
        answer._obj.total, answer._obj.reserved, answer._obj.free, answer._obj.used = 100, 10, 65, 25
        return 3 * (handle.value == 2)  # an older one

    def nvmlDeviceGetMemoryInfo(self, handle, answer):  # noqa: N802 - the library\'s
        answer._obj[0], answer._obj[1], answer._obj[2] = 100, 70, 30
        return 0

    def nvmlDeviceGetPowerUsage(self, handle, answer):  # noqa: N802 - the library\'s
        answer._obj.value = 123_400
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, answer):  # noqa: N802 - the library\'s
        answer._obj.value = 5_000_000_000
        return 3 * (handle.value == 2)  # not supported

    def nvmlDeviceGetUUID(self, handle, name, size):  # noqa: N802 - the library\'s
        name.value = b"GPU-%d" % handle.value
        return 0


def test_nvml_tells_the_same_under_the_servers_names():
    assert gpu_metrics(Nvml(FakeNvml()).read()) == {
        'nv_gpu_utilization{gpu_uuid="GPU-1"}': 0.4, 'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"}': 25,
        'nv_gpu_power_usage{gpu_uuid="GPU-1"}': 123.4, 'nv_energy_consumption{gpu_uuid="GPU-1"}': 5e6,
        'nv_gpu_utilization{gpu_uuid="GPU-2"}': 0.4, 'nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"}': 30,
        'nv_gpu_power_usage{gpu_uuid="GPU-2"}': 123.4,
    }  # fmt: skip
    no_gpu = FakeNvml()
    no_gpu.nvmlDeviceGetCount_v2 = lambda count: 0
    with pytest.raises(OSError, match="no GPU"):
        Nvml(no_gpu)


def test_nobody_watched(tmp_path):
    rows = [row(i * 10 * MS, 20 * MS) for i in range(10)]
    assert summarise(build(tmp_path / "run", rows))["server"]["watched"] is None


def test_busy_split_and_littles_law(tmp_path):
    """Field case 28 and beyond: 1000 requests in 500 executions of two, 15 ms each, one instance, 10 s."""
    after = statistics({2: 500}, queue_ns=4 * MS, compute_ns=15 * MS)
    config = {"instance_group": [{"count": 1, "kind": "KIND_CPU"}]}
    facts = {"models": {"m": {"config": config}}}
    server = run(tmp_path / "run", [], server=window(statistics({}), after), facts=facts)
    assert server["mean_batch"] == 2
    assert server["by_batch"] == {"2": {"executions": 500, "mean_ns": 15 * MS}}
    assert server["busy"] == 0.75  # 7.5 s of one instance's 10
    assert server["split_ns"] == {
        "queue": 4 * MS,
        "input": 1.5 * MS,
        "infer": 12 * MS,
        "output": 1.5 * MS,
        "frontend": 0,
    }
    # Little: 1000 requests of 20 ms in 10 s by our stamps, of 19 ms by its counters
    assert server["in_flight"] == {"server": 1.9, "client": 2.0}
    assert time_line(server) == (
        "a request's time: queue 4 ms, input 1.5 ms, inference 12 ms, output 1.5 ms, front end 0 ns; "
        "of 2.00 requests in flight by our stamps 1.90 were inside by its counters"
    )
    assert time_line({}) == ""


def test_answers_of_a_cache_have_no_part_in_compute_and_do_not_hide_the_front_end(tmp_path):
    """500 requests were executed (4 ms of queue, 15 of compute), 500 came from the cache: 3 ms each beside that."""
    after = statistics({1: 500}, queue_ns=4 * MS, compute_ns=15 * MS, hits=500)
    after["inference_stats"]["success"] = {"count": 1000, "ns": 500 * 19 * MS + 1000 * 3 * MS}
    server = run(tmp_path / "run", [], server=window(statistics({}), after))
    assert server["split_ns"]["infer"] == 12 * MS
    assert server["split_ns"]["frontend"] == 3 * MS


def test_its_use_in_words():
    seen = {"cpu_cores": 1.53, "memory_bytes": 300 * 2**20, "pending": {"mean": 4.0, "max": 8}, "rejected": {"REJECTED": 7}, "resets": [{}]}  # fmt: skip
    assert use_line({"busy": 0.754, "watched": seen}) == (
        "instances busy 75% of the time, CPU 1.5 cores, memory 300 MiB, pending 4 on average, at most 8, "
        "7 requests refused (REJECTED), counters reset 1 time"
    )
    gpu = {
        "utilisation": 0.35,
        "memory_bytes": 2.5e9,
        "power_w": 475.5,
        "energy_j": 600,
        "energy_j_per_request": 3.0,
    }
    assert use_line({"watched": {"gpu": gpu}}) == "GPU busy 35%, 2.328 GiB, 476 W, 3 J a request"
    assert use_line({"busy": None, "watched": None}) == use_line({}) == ""
