"""The engine benchmark: arithmetic on given cells, and a tiny model through every door."""

import csv
import io
import json
import os
import platform
import re
import signal
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from loadgen.cli.app import app
from loadgen.convert.calibration import Calibration
from loadgen.convert.encoder import load_encoder
from loadgen.convert.options import SourceOptions
from loadgen.convert.parity import make_feeds
from loadgen.convert.sources import find_source
from loadgen.enginebench import memory, timing
from loadgen.enginebench import run as run_module
from loadgen.enginebench.cells import Asked, BenchError, Cell, latency
from loadgen.enginebench.job import Job, bench_engine
from loadgen.enginebench.memory import growth
from loadgen.enginebench.page import accuracy_latency, memory_throughput, page
from loadgen.enginebench.result import Wanted, best_batches, choose, memory_growth, slowest, summary
from loadgen.enginebench.run import find_device
from loadgen.enginebench.timing import time_calls, time_parts
from loadgen.environment.stored import stored
from tests.support.cli import loadgen
from tests.support.encoder import write_encoder
from tests.support.families import write_config

MIB = 2**20


def cell(runtime="torch", precision="fp32", batch=1, length=16, ms=10.0, peak=100, cosine=1.0, **more):
    return Cell(
        runtime, precision, batch, length, median_ns=ms * 1e6, p99_ns=ms * 2e6, least_ns=ms * 1e6, rounds=20,
        memory={"rss_growth": peak * MIB}, cosine=cosine, **more,
    )  # fmt: skip


def test_latency_is_the_median_and_the_nearest_rank():
    told = latency([*range(1, 200), 1000])
    assert (told["median_ns"], told["p99_ns"], told["least_ns"], told["rounds"]) == (100, 198, 1, 200)
    assert latency([7.0])["p99_ns"] == 7.0


def test_rates_follow_from_the_median():
    one = cell(batch=8, length=64, ms=4)
    assert one.samples_per_s == pytest.approx(2000)
    assert one.tokens_per_s == pytest.approx(128_000)
    assert Cell("torch", "fp32", 1, 1).samples_per_s is None


def test_warm_up_is_in_no_figure_and_rounds_are_at_least_those_asked(monkeypatch):
    """By a clock that the calls themselves move: the first three take longer, and no latency shows it."""
    took = iter([900, 500, 300, *range(10, 100)])
    now = [0]
    clock = SimpleNamespace(monotonic_ns=lambda: now[0], monotonic=lambda: now[0] / 1e9)
    with monkeypatch.context() as patched:
        patched.setattr(timing, "time", clock)
        told = time_calls(
            lambda: now.__setitem__(0, now[0] + next(took)), device="cpu", seconds=0, rounds=4, warmup=3
        )
    assert (told["rounds"], told["least_ns"], told["median_ns"], told["p99_ns"]) == (4, 10, 11, 13)
    assert told["first_ns"] == 900
    order = []
    parts = [(name, lambda name=name: order.append(name)) for name in ("a", "b")]
    told = time_parts(parts, device="cpu", seconds=0, rounds=2, warmup=2)
    assert order == ["a", "b"] * 4
    assert set(told["parts"]) == {"a", "b"}
    assert told["rounds"] == 2


@pytest.mark.parametrize(("torch_runs", "peak"), [(True, 7 * MIB), (False, 50 * MIB)])
def test_on_a_gpu_only_what_torch_runs_is_counted_by_torch(monkeypatch, torch_runs, peak):
    """An engine's memory is not torch's: its allocator sees the tensors alone."""
    import torch

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7 * MIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (20 * MIB, 100 * MIB))
    found = memory.peaks("cuda", before=0, taken=30 * MIB, opened=None, fresh=False, torch_runs=torch_runs)
    assert found["device_used"] == 80 * MIB
    assert Cell("tensorrt", "fp32", 1, 1, memory=found).peak_bytes == peak


def test_an_image_has_no_tokens():
    one = replace(cell(batch=8, length=1, ms=4), tokens=False)
    assert (one.samples_per_s, one.tokens_per_s) == (pytest.approx(2000), None)
    assert choose([one], Wanted())["batches"]["1"]["samples_per_s"] == pytest.approx(2000)


def test_memory_that_grows_faster_than_the_batch_is_flagged():
    straight = {1: 100 * MIB, 4: 130 * MIB, 16: 250 * MIB}
    assert growth(straight) == {"linear": True, "bytes_per_row": [10 * MIB, 10 * MIB], "at_batch": None}
    bent = {1: 100 * MIB, 4: 130 * MIB, 16: 400 * MIB, 32: 500 * MIB}
    assert (growth(bent)["linear"], growth(bent)["at_batch"]) == (False, 16)
    assert growth({1: MIB, 2: 2 * MIB})["linear"] is None
    assert growth({1: 0, 2: 0, 4: 3 * MIB})["linear"] is None, "within what the figure moves by on its own"
    floor = {1: 200 * MIB, 8: 200 * MIB, 32: 300 * MIB}
    assert growth(floor)["linear"] is None, "what opening took hides what small batches need"
    assert growth({**floor, 64: 600 * MIB})["linear"] is False
    assert growth({**floor, 64: 430 * MIB})["linear"]
    told = memory_growth([cell(batch=b, peak=p) for b, p in ((1, 100), (4, 130), (16, 400))])
    assert [(one["length"], one["linear"]) for one in told] == [(16, False)]


def test_the_best_batch_of_each_length():
    cells = [cell(batch=b, length=n, ms=ms) for n in (16, 64) for b, ms in ((1, 1), (4, 2), (16, 10))]
    told = best_batches([*cells, Cell("torch", "fp32", 64, 16, error="out of memory")])
    assert [(one["length"], one["batch"], one["samples_per_s"]) for one in told] == [
        (16, 4, 2000),
        (64, 4, 2000),
    ]
    assert slowest(cells).batch == 16
    assert slowest([]) is None


GRID = [
    cell("torch", "fp32", b, 16, ms, peak) for b, ms, peak in ((1, 2, 100), (8, 8, 200))
] + [
    cell("onnxruntime", "int8", b, 16, ms, peak, cosine=0.95) for b, ms, peak in ((1, 1, 50), (8, 2, 90))
] + [
    cell("onnxruntime", "fp16", b, 16, ms, peak, cosine=0.9999) for b, ms, peak in ((1, 1.5, 60), (8, 5, 500))
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "runtime", "precision", "batch"),
    [
        (Wanted(floor=0.9), "onnxruntime", "int8", 8),
        (Wanted(floor=0.98), "onnxruntime", "fp16", 8),
        (Wanted(floor=0.98, ceiling_bytes=300 * MIB), "torch", "fp32", 8),
        (Wanted(floor=0.98, ceiling_bytes=80 * MIB), "onnxruntime", "fp16", 1),
        (Wanted(floor=0.98, most_ns=1_600_000), "onnxruntime", "fp16", 1),
    ],
)
def test_the_choice_keeps_to_floor_and_ceiling(wanted, runtime, precision, batch):
    told = choose(GRID, wanted)
    assert (told["runtime"], told["precision"]) == (runtime, precision)
    assert told["batches"]["16"]["batch"] == batch


def test_no_choice_says_why():
    below = [one for one in GRID if one.cosine < 1]
    told = choose([*below, Cell("tensorrt", "fp32", 1, 16, error="not installed")], Wanted(floor=1.0))
    assert told["runtime"] is None
    assert {one["why"] for one in told["refused"]} == {
        "not installed", "agreement 0.9500 below 1.0", "agreement 0.9999 below 1.0",
    }  # fmt: skip
    assert choose(GRID, Wanted(ceiling_bytes=1))["refused"][0]["why"].startswith("peak 100 MiB over 1 B")


def test_no_cell_without_agreement_is_chosen():
    """Answers that are all zeros have their ranks in common with any that are all alike."""
    blank = cell("onnxruntime", "fp16", cosine=0.0, ranks=1.0, ms=1)
    for worse in (
        blank, replace(blank, cosine=-0.5), replace(blank, cosine=float("nan")), replace(blank, cosine=None),
        replace(blank, cosine=None, ranks=None), replace(blank, cosine=1.0, ranks=float("nan")),
    ):  # fmt: skip
        told = choose([worse, cell(ms=9)], Wanted(floor=0.5))
        assert (told["runtime"], told["batches"]["16"]["agreement"]) == ("torch", 1.0)
        assert told["refused"][0]["why"].startswith("agreement ")
        assert choose([worse], Wanted(floor=0.5))["runtime"] is None


def test_ranks_are_the_floor_s_figure_where_there_are_any():
    good = cell(cosine=0.5, ranks=0.99)
    assert Wanted(floor=0.98).fault(good) is None
    assert Wanted(floor=0.98).fault(cell(cosine=float("nan"))) == "agreement nan below 0.98"


def test_a_runtime_that_fails_at_one_length_is_not_chosen():
    cells = [cell(length=16, ms=9), cell(length=64, ms=9), cell("onnxruntime", length=16, ms=1)]
    cells.append(Cell("onnxruntime", "fp32", 1, 64, error="out of memory"))
    assert choose(cells, Wanted())["runtime"] == "torch"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"runtimes": ("tf",)}, "runtimes tf: allowed are torch, torch-compile, onnxruntime, tensorrt"),
        ({"precisions": ()}, "precisions none: allowed are"),
        ({"batches": (0,)}, "batches: whole numbers of 1 or more"),
        ({"mode": "eval"}, "mode 'eval': allowed are infer, train"),
        ({"rounds": 0}, "rounds and warmup must be 1 or more"),
    ],
)
def test_what_cannot_be_asked(wrong, says):
    with pytest.raises(BenchError, match=says):
        Asked(**wrong)


def test_sizes_ascend():
    sizes = list(Asked(batches=(16, 1), lengths=(64, 8)).sizes())
    assert sizes == [(1, 8), (1, 64), (16, 8), (16, 64)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_encoder(tmp_path_factory.mktemp("model") / "tiny", pooling="mean_tokens"))


@pytest.fixture(scope="module")
def result(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    asked = Asked((1, 2, 4), (8, 16), ("fp32", "int8"), ("torch", "onnxruntime"), seconds=0.0, rounds=3)
    said = []
    job = Job(tiny, asked, wanted=Wanted(floor=0.5), trace=True, out=out)
    return bench_engine(job, said.append), out, said


def test_every_cell_is_there_once_measured_or_with_its_reason(result):
    told, out, said = result
    assert json.loads((out / "engine.json").read_text()) == json.loads(json.dumps(told))
    assert told["finished"]
    assert len(told["cells"]) == 2 * 2 * 6
    by_engine = {}
    for one in told["cells"]:
        by_engine.setdefault((one["runtime"], one["precision"]), []).append(one)
    assert {one["error"] for one in by_engine["torch", "int8"]} == {
        "PyTorch runs no int8 of an unquantised model; onnxruntime does"
    }
    for engine in (("torch", "fp32"), ("onnxruntime", "fp32"), ("onnxruntime", "int8")):
        for one in by_engine[engine]:
            assert one["error"] is None
            assert one["rounds"] == 3
            assert one["p99_of_few"]
            assert 0 < one["least_ns"] <= one["median_ns"] <= one["p99_ns"]
            assert one["samples_per_s"] == pytest.approx(one["batch"] * 1e9 / one["median_ns"])
            assert one["tokens_per_s"] == pytest.approx(one["samples_per_s"] * one["length"])
    exact = min(one["cosine"] for engine in ("torch", "onnxruntime") for one in by_engine[engine, "fp32"])
    assert exact > 0.999999
    assert 0.9 < min(one["cosine"] for one in by_engine["onnxruntime", "int8"]) < 0.99999
    assert (
        "arena" in by_engine["onnxruntime", "fp32"][0]["memory"]
        or not by_engine["torch", "fp32"][0]["memory"]
    )
    assert told["device"]["kind"] == "cpu"
    assert told["versions"]["torch"] == version("torch")
    assert stored(out)["kernel"] == platform.release()
    assert stored(out)["environment"]["libraries"]["onnxruntime"] == version("onnxruntime")
    assert any("onnxruntime, int8: batch 4, length 16 (6 of 6)" in line for line in said)


def test_whatever_converts_can_be_measured(tmp_path):
    """A config alone, an image's, and a module of the user's, whose batch is one size."""
    asked = Asked((1, 2), (), ("fp32",), ("torch", "onnxruntime"), seconds=0.0, rounds=2)
    for family, length in (("gpt2", 16), ("vit", 1)):
        source = str(write_config(tmp_path / family, family))
        told = bench_engine(Job(source, asked, meant=SourceOptions(task="features", random_seed=1)))
        assert [one["error"] for one in told["cells"] if one["length"] == length] == [None] * 4
        assert min(one["cosine"] for one in told["cells"]) > 0.9999
        assert (told["cells"][0]["tokens_per_s"] is None) == (family == "vit")
        assert told["notes"][-1].startswith("random weights of seed 1: speed and shapes are real")
    meant = SourceOptions(tensors=("x:FP32:1,3",))
    told = bench_engine(Job("tests.support.modules:Scalars", asked, meant=meant))
    assert [one["error"] for one in told["cells"]] == [
        None, "the model takes one item at a time: its batch is not free",
    ] * 2  # fmt: skip


def test_tensorrt_gets_an_int8_file_of_its_own(tiny, monkeypatch):
    """What ONNX Runtime looks up in 8 bits TensorRT does not build."""
    given = []
    monkeypatch.setattr(run_module, "open_tensorrt", lambda file, *_: given.append(file.name))
    encoder = load_encoder(find_source(tiny))
    rows = Calibration(lambda: iter([make_feeds(encoder, [8], np.random.default_rng(0))]), {})
    asked = Asked((1,), (8,), ("fp32", "int8"), ("tensorrt",))
    with run_module.opened(encoder, asked, calibration=rows) as bench:
        for precision in asked.precisions:
            run_module.open_engine(bench, "tensorrt", precision)
    assert given == ["fp32.onnx", "int8-for-tensorrt.onnx"]


def test_a_choice_a_trace_a_table_and_a_page(result):
    told, out, _ = result
    assert told["choice"]["runtime"] in ("torch", "onnxruntime")
    assert set(told["choice"]["batches"]) == {"8", "16"}
    assert json.loads((out / "trace.json").read_text())
    assert told["trace"]["by"] in ("torch.profiler", "onnxruntime")
    rows = list(csv.DictReader(io.StringIO((out / "cells.csv").read_text())))
    assert [row["runtime"] for row in rows] == [one["runtime"] for one in told["cells"]]
    assert float(rows[0]["median_ns"]) == told["cells"][0]["median_ns"]
    page = (out / "engine.html").read_text()
    assert "https://" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "PyTorch runs no int8" in page
    points = accuracy_latency(told["cells"])["data"]
    assert [trace["name"] for trace in points] == ["torch fp32", "onnxruntime fp32", "onnxruntime int8"]
    assert all(len(trace["x"]) == 6 for trace in points)
    assert memory_throughput(told["cells"])["data"][0]["text"][0] == "batch 1, length 8"


def test_a_training_step_has_three_parts(tiny):
    asked = Asked(
        (2,), (8,), ("fp32", "bf16", "int8"), ("torch", "onnxruntime"), mode="train", seconds=0.0, rounds=3
    )
    told = bench_engine(Job(tiny, asked))
    fp32, bf16, int8, *onnx = told["cells"]
    for one in (fp32, bf16):
        assert one["error"] is None
        assert set(one["parts"]) == {"forward", "backward", "optimizer"}
        assert sum(one["parts"].values()) == pytest.approx(one["median_ns"], rel=0.9)
        assert one["cosine"] is None
    assert int8["error"].startswith("int8 is for inference; training runs in fp32")
    assert {one["error"] for one in onnx} == {"onnxruntime does not train"}


def test_a_training_step_changes_the_weights_of_a_copy_only(tiny):
    from loadgen.enginebench.training import Trainer

    encoder = load_encoder(find_source(tiny))
    trainer = Trainer(encoder, "fp32", "cpu", compiled=False)
    before = {name: w.detach().clone() for name, w in trainer.module.named_parameters()}
    for _, part in trainer.parts(make_feeds(encoder, [8, 8], np.random.default_rng(0))):
        part()
    moved = [name for name, w in trainer.module.named_parameters() if not w.equal(before[name])]
    assert len(moved) > len(before) / 2
    assert all(w.equal(before[name]) for name, w in encoder.module.named_parameters())
    assert all(w.grad is None for w in trainer.module.parameters())


def press_after(monkeypatch, cells):
    """Ctrl-C while the cell after so many is measured."""
    real, seen = run_module._inferred, []

    def interrupted(bench, engine, cell):
        if len(seen) == cells:
            os.kill(os.getpid(), signal.SIGINT)
        seen.append(cell)
        return real(bench, engine, cell)

    monkeypatch.setattr(run_module, "_inferred", interrupted)


FOUR = ["--batches", "1,2,1", "--lengths", "8,16", "--runtimes", "torch", "--seconds", "0", "--rounds", "2"]


@pytest.mark.parametrize("more", [["--json"], []])
def test_ctrl_c_keeps_the_cells_that_are_finished(tiny, tmp_path, monkeypatch, more):
    press_after(monkeypatch, 3)
    done = loadgen("bench", "engine", tiny, *FOUR, "--device", "cpu", "--out", tmp_path, *more)
    assert done.code == 130
    assert done.err.splitlines()[-1] == f"interrupted after 3 of 4 cells: {tmp_path / 'engine.json'}"
    told = json.loads((tmp_path / "engine.json").read_text())
    assert (told["finished"], len(told["cells"])) == (False, 3)
    if more:
        assert done.json["cells"] == told["cells"]
    else:
        assert f"written to {tmp_path}" in done.out


def test_ctrl_c_before_the_first_cell_leaves_no_folder(tiny, tmp_path, monkeypatch):
    press_after(monkeypatch, 0)
    done = loadgen("bench", "engine", tiny, *FOUR, "--device", "cpu", "--out", tmp_path / "deep" / "out")
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-1] == "interrupted: nothing was measured"
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept").touch()
    done = loadgen("bench", "engine", tiny, *FOUR, "--device", "cpu", "--out", tmp_path / "there")
    assert (done.code, [file.name for file in tmp_path.glob("*/*")]) == (130, ["kept"])


def test_ctrl_c_while_the_cells_are_written_is_too_late(tiny, tmp_path, monkeypatch):
    def written(told):
        os.kill(os.getpid(), signal.SIGINT)
        return page(told)

    monkeypatch.setattr("loadgen.enginebench.page.page", written)
    done = loadgen("bench", "engine", tiny, *FOUR, "--device", "cpu", "--out", tmp_path, "--json")
    assert (done.code, len(done.json["cells"])) == (0, 4)
    assert (tmp_path / "engine.html").exists()


def test_ctrl_c_while_the_slowest_cell_is_traced_keeps_them_all(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("loadgen.enginebench.job.write_trace", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    done = loadgen("bench", "engine", tiny, *FOUR, "--device", "cpu", "--out", tmp_path, "--trace")
    assert done.code == 130
    assert done.err.splitlines()[-1] == f"interrupted after 4 of 4 cells: {tmp_path / 'engine.json'}"


def test_one_cell_out_of_memory_costs_that_cell(tiny, monkeypatch):
    real = run_module._inferred

    def full(bench, engine, cell):
        if cell.batch == 2:
            raise RuntimeError("out of memory\nmore words")
        return real(bench, engine, cell)

    monkeypatch.setattr(run_module, "_inferred", full)
    asked = Asked((1, 2, 4), (8,), runtimes=("torch",), seconds=0.0, rounds=2)
    told = bench_engine(Job(tiny, asked))
    assert [one["error"] for one in told["cells"]] == [None, "RuntimeError: out of memory", None]


def test_the_verb_shows_a_table_and_refuses_in_one_line(tiny, tmp_path):
    arguments = ["bench", "engine", tiny, "--batches", "1", "--lengths", "8", "--runtimes", "torch,tensorrt"]
    arguments += ["--random-weights", "3"]
    done = CliRunner().invoke(
        app,
        [
            *arguments,
            "--seconds",
            "0",
            "--rounds",
            "2",
            "--autotune",
            "--device",
            "cpu",
            "--out",
            str(tmp_path),
        ],
    )
    assert done.exit_code == 0, done.output
    assert re.search(r"torch fp32 +1 +8 ", done.stdout)
    assert "tensorrt, fp32: 1 cells not measured: TensorRT is " in done.stdout
    assert "choose torch in fp32, batch 1 at length 8" in done.stdout
    assert json.loads((tmp_path / "engine.json").read_text())["notes"][-1].startswith(
        "random weights of seed 3"
    )
    for extra, says in (
        (["--lengths", "8,x"], "--lengths '8,x': whole numbers are expected"),
        (["--lengths", "9999"], "lengths 9999: "),
        (["--ceiling", "2"], "--ceiling: '2' is not a size"),
        (["--device", "tpu"], "device 'tpu': allowed are auto, cpu, cuda"),
        (["--mode", "train", "--autotune"], "--autotune chooses among --mode infer"),
    ):
        bad = CliRunner().invoke(app, [*arguments, *extra, "--out", str(tmp_path)])
        assert says in str(bad.exception) or "max length 9999" in str(bad.exception), (extra, bad.exception)


def test_a_gpu_that_is_not_there_is_refused():
    import torch

    if torch.cuda.is_available():
        assert find_device("auto") == "cuda"
    else:
        assert find_device("auto") == "cpu"
        with pytest.raises(BenchError, match="PyTorch sees no GPU here"):
            find_device("cuda")


def bench(*arguments):
    return loadgen("bench", "engine", "--seconds", "0", "--rounds", "2", "--device", "cpu", *arguments)


def test_what_cannot_be_measured_or_written_is_one_line(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "model.onnx").write_text("x")
    for arguments, code, says in (
        ((tiny, "--out", tmp_path / "file"), 3, f"cannot write {tmp_path / 'file'}: File exists"),
        ((tmp_path / "model.onnx",), 2, f"{tmp_path / 'model.onnx'} is no ONNX file that runs"),
        (("some.module:factory",), 2, "'some.module:factory': there is no module some.module"),
        ((tiny, "--floor", "2", "--autotune"), 2, "floor 2.0: an agreement is -1 to 1"),
        ((tiny, "--floor", "0.5"), 2, "--floor: a limit of the choice, which --autotune asks for"),
        ((tiny, "--ceiling", "1GiB", "--max-latency", "1ms"), 2, "--ceiling, --max-latency: a limit"),
        ((tiny, "--seconds", "inf"), 2, "seconds inf: a number of 0 or more"),
        ((tiny, "--floor", "nan"), 2, "floor nan: an agreement is -1 to 1"),
    ):  # fmt: skip
        answer = bench(*arguments)
        assert (answer.code, len(answer.error_lines)) == (code, 1)
        assert says in answer.error_lines[0]


def test_seconds_that_are_no_number_are_refused():
    with pytest.raises(BenchError, match="seconds nan: a number of 0 or more is expected"):
        Asked(seconds=float("nan"))


def test_exit_codes_tell_a_choice_from_none_and_figures_from_none(tiny, tmp_path):
    small = (tiny, "--batches", "1", "--lengths", "8", "--runtimes", "torch", "--out", tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trace.json").write_text("of an earlier one")
    answer = bench(*small, "--autotune", "--ceiling", "1B")
    assert answer.code == 1
    assert re.search(
        r"nothing keeps to the limits: torch fp32, batch 1, length 8: peak .* over 1 B", answer.out
    )
    assert not (tmp_path / "out" / "trace.json").exists()
    answer = bench(*small, "--precisions", "int8")
    assert (answer.code, answer.error_lines) == (3, ["error: no cell was measured"])
    assert "calibrated with 32 rows: the lengths measured" in answer.out


def test_figures_that_cannot_be_written_are_shown(tiny, tmp_path):
    (tmp_path / "engine.json").mkdir()
    answer = bench(tiny, "--batches", "1", "--lengths", "8", "--runtimes", "torch", "--out", tmp_path)
    assert re.search(r"torch fp32 +1 +8 ", answer.out)
    assert (answer.code, "written to" in answer.out) == (3, False)
    assert f"cannot write {tmp_path / 'engine.json'}: Is a directory" in answer.error_lines[0]


def test_answers_that_are_no_numbers_are_null_and_what_has_no_tokens_counts_none():
    nan = float("nan")
    facts = {"model": {"label": "m"}, "device": {"name": "d"}}
    told = summary(Asked(), [cell(cosine=nan), cell(batch=4, tokens=False)], facts, finished=True)
    assert [one["cosine"] for one in told["cells"]] == [None, 1.0]
    assert [one["tokens_per_s"] for one in told["cells"]] == [1600.0, None]
    json.dumps(told, allow_nan=False)
    assert page(told).startswith("<!doctype html>")  # which refuses what JSON cannot say
