"""The server along a run: use, pending, resets, the split of its time, from looks that are given."""

import json
import os

from loadgen.analysis.summary import summarise
from loadgen.lab.watch_process import metrics_of, process_use
from loadgen.report.words import use_line
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


def look(t_s, stats=None, pending=None, cpu_s=None, rejected=None):
    line = {"t_ns": t_s * S, "stats": []}
    if stats is not None:
        line["stats"] = [{"t_ns": t_s * S, "model": "m", "version": "1", "stats": stats}]
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


def test_its_use_in_words():
    seen = {"cpu_cores": 1.53, "memory_bytes": 300 * 2**20, "pending": {"mean": 4.0, "max": 8}, "rejected": {"REJECTED": 7}, "resets": [{}]}  # fmt: skip
    assert use_line({"busy": 0.754, "watched": seen}) == (
        "instances busy 75% of the time, CPU 1.5 cores, memory 300 MiB, pending 4 on average, at most 8, "
        "7 requests refused (REJECTED), counters reset 1 time"
    )
    assert use_line({"busy": None, "watched": None}) == use_line({}) == ""
