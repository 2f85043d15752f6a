"""The environment: read without importing anything, its known mismatches, and what differs between two."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from loadgen.environment import cuda, facts, probe
from loadgen.environment.checks import differences, mismatches
from loadgen.environment.stored import StoredError, stored
from loadgen.lab.facts import client_facts
from loadgen.triton.install import ONNX_RUNTIME_VARIABLE
from tests.support.cli import loadgen

H200 = {"driver": "570.86", "models": ["NVIDIA H200"], "driver_cuda": "12.8", "why_none": None,
        "devices": [{"name": "NVIDIA H200", "compute": "9.0", "memory_bytes": 1}]}  # fmt: skip


def test_versions_are_those_that_importlib_tells():
    for name in ("numpy", "pyarrow", "tritonclient", "torch", "onnxruntime", "typer", "hdrhistogram"):
        assert facts.version(name) == version(name)
    assert facts.version("Typing.Extensions") == version("typing_extensions")
    assert facts.version("no-such-package") is None


def test_a_run_imports_no_framework_for_its_facts():
    script = (
        "import sys; from loadgen.lab.facts import client_facts; client_facts();"
        "print([m for m in ('torch', 'onnx', 'onnxruntime', 'transformers', 'tensorrt_rtx_bindings') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_quick_facts_are_json_and_say_what_the_machine_is(monkeypatch):
    monkeypatch.setenv(ONNX_RUNTIME_VARIABLE, "onnxruntime-gpu==1.31.1")  # what the embedded server had
    told = json.loads(json.dumps(facts.quick()))
    assert told["libraries"]["torch"] == version("torch")
    assert told["limits"]["open_files"] > 0
    assert told["processor"]["cores"] >= 1
    assert told["variables"][ONNX_RUNTIME_VARIABLE] == "onnxruntime-gpu==1.31.1"
    assert client_facts()["environment"]["libraries"] == told["libraries"]


def test_the_cuda_of_torch_is_read_from_its_file(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another test may have imported it
    for line, found in (
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda: Optional[str] = None", None),
        ("", None),
    ):
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\nhip = '6.1'\n")
        assert facts.torch_cuda() == found


def test_a_library_that_does_not_load_says_why(tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text(
        "raise ImportError('libcudnn.so.9: cannot open shared object file')"
    )
    (tmp_path / "tokenizers.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(
        probe, "_LOADS", {"onnxruntime": "{}", "tokenizers": "{}", "no_such_library": "{}", "no.such": "{}"}
    )
    loads = probe.full()["loads"]
    assert loads == {
        "onnxruntime": {"ok": False, "why": "ImportError: libcudnn.so.9: cannot open shared object file"},
        "tokenizers": {"ok": False, "why": "killed by signal 11"},
    }
    assert mismatches({"loads": loads}) == [
        "onnxruntime is installed and does not load: ImportError: libcudnn.so.9: cannot open shared object file",
        "tokenizers is installed and does not load: killed by signal 11",
    ]


def test_no_driver_is_told_in_the_loaders_words(monkeypatch):
    monkeypatch.setattr(cuda, "_LIBRARY", "libno-such-driver.so.1")
    cuda.ask.cache_clear()
    try:
        assert cuda.cuda_device() is None
        assert (
            cuda.ask().why
            == "libno-such-driver.so.1: cannot open shared object file: No such file or directory"
        )
    finally:
        cuda.ask.cache_clear()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"libraries": {"torch": "2.13.0+cu130"}, "torch_cuda": "13.0", "gpu": H200},
         ("torch 2.13.0+cu130 is built for CUDA 13.0, the driver 570.86 runs CUDA up to 12.8: "
         "update the driver, or install torch for CUDA 12")),
        ({"libraries": {"torch": "2.13.0+cu129"}, "torch_cuda": "12.9", "gpu": H200}, None),  # within one major it runs
        ({"libraries": {"torch": "2.13.0+cpu"}, "torch_cuda": None, "gpu": H200},
         "torch 2.13.0+cpu is built without CUDA and cannot use NVIDIA H200: install a CUDA build of it"),
        ({"libraries": {"torch": "2.13.0+cu128"}, "torch_cuda": "12.8", "gpu": H200,
          "loads": {"torch": {"ok": True, "cuda_works": False}}},
         "torch 2.13.0+cu128 (CUDA 12.8) does not find NVIDIA H200; CUDA_VISIBLE_DEVICES may hide it"),
        ({"gpu": {**H200, "devices": [], "why_none": "cuInit failed: no CUDA-capable device is detected (100)"}},
         "NVIDIA H200 is here and CUDA cannot use it: cuInit failed: no CUDA-capable device is detected (100)"),
        ({"libraries": {"onnxruntime": "1.32.0"}, "gpu": H200},
         "onnxruntime 1.32.0 runs on the CPU; onnxruntime-gpu can use NVIDIA H200"),
        ({"libraries": {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.0"}},
         ("onnxruntime 1.32.0 and onnxruntime-gpu 1.31.0 write into the same folder and the later one wins: "
         "uninstall both, then install one")),
        ({"libraries": {"tensorrt-cu13": "10.13.2.6"}, "server_tensorrt": "10.14.1"},
         "TensorRT 10.13.2.6 builds engines that the server's 10.14.1 does not load: convert with the server's version"),
        ({"libraries": {"tensorrt-cu13": "10.13.2.6"}, "server_tensorrt": "10.13.2"}, None),
        ({"libraries": {"tensorrt-rtx-cu13-libs": "1.7.1"}, "server_tensorrt": "10.13.2"}, None),
        ({"limits": {"open_files": 1024}}, "open files are limited to 1024: so many connections at most (ulimit -n)"),
        ({"limits": {"cpu_quota": 2.5}, "processor": {"cores": 16}},
         "the container may use 2.5 of 16 cores: it is stopped for the rest of each 100 ms"),
        ({"limits": {"cpu_quota": 16}, "processor": {"cores": 16, "governor": "performance"}}, None),
        ({"processor": {"governor": "powersave"}},
         "the CPU's governor is powersave: times depend on how busy it was before (performance holds them still)"),
        ({}, None),
    ],
)  # fmt: skip
def test_known_mismatches(told, said):
    assert mismatches(told) == ([] if said is None else [said])


def test_the_servers_tensorrt_is_seen_in_its_own_image(monkeypatch):
    monkeypatch.setenv("TRT_VERSION", "10.13.2.6+cuda13.0")
    assert probe.server_tensorrt() == "10.13.2.6"
    monkeypatch.delenv("TRT_VERSION")
    assert probe.server_tensorrt() is None


def test_differences_are_by_key_and_leave_out_what_always_changes():
    a = {
        "kernel": "6.1",
        "load_1m": 0.1,
        "packages": {"numpy": "2.1", "hpack": "4"},
        "environment": {"gpu": {"models": ["A"]}},
    }
    b = {
        "kernel": "6.1",
        "load_1m": 9.0,
        "packages": {"numpy": "2.4"},
        "environment": {"gpu": {"models": ["B"]}, "loads": {}},
    }
    assert differences(a, b) == [
        ("packages.numpy", "2.1", "2.4"),
        ("packages.hpack", "4", None),
        ("environment.gpu.models", ["A"], ["B"]),
    ]
    assert differences(a, a) == []


@pytest.fixture
def folders(tmp_path):
    """A run, a conversion of two versions, and what `loadgen env --json` printed."""
    here = client_facts()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"client": {**here, "kernel": "5.0"}}))
    for number, torch in ((2, "2.13.0"), (10, "2.14.0")):
        (tmp_path / "model" / str(number)).mkdir(parents=True)
        environment = {
            **here["environment"],
            "libraries": {**here["environment"]["libraries"], "torch": torch},
        }
        sidecar = {"versions": {"torch": torch, "python": here["python"]}, "environment": environment}
        sidecar["machine"] = {**facts.machine(), "kernel": "5.1"}
        (tmp_path / "model" / str(number) / "convert.json").write_text(json.dumps(sidecar))
    (tmp_path / "env.json").write_text(json.dumps({**here, "triton": None, "mismatches": []}))
    return tmp_path


def test_diff_of_runs_conversions_files_and_here(folders):
    answer = loadgen("env", "diff", folders / "run", "here", "--json")
    assert [(d["key"], d["a"], d["b"]) for d in answer.json] == [("kernel", "5.0", client_facts()["kernel"])]
    assert loadgen("env", "diff", folders / "env.json", "here").out == "the same\n"
    keys = {d["key"] for d in loadgen("env", "diff", folders / "run", folders / "model", "--json").json}
    assert "kernel" in keys
    assert not {"cpu", "memory_bytes", "python"} & keys, "a conversion knows the machine as a run does"
    answer = loadgen("env", "diff", folders / "model" / "2", folders / "model")
    assert answer.out.splitlines() == [
        f"{'environment.libraries.torch':36} 2.13.0  ->  2.14.0",
        "1 differences",
    ]


def test_a_conversion_and_a_run_differ_in_nothing_that_only_one_writes_down(folders):
    here = client_facts()
    torch = here["environment"]["libraries"].get("torch")
    wanted = {"kernel": ("5.1", here["kernel"]), "environment.libraries.torch": ("2.14.0", torch)}
    answer = loadgen("env", "diff", folders / "model", "here", "--json")
    assert {d["key"]: (d["a"], d["b"]) for d in answer.json} == wanted


def test_what_holds_no_environment_is_one_line(folders, tmp_path):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("[1]")
    (tmp_path / "empty").mkdir()
    for name, said in (("broken.json", "cannot be read"), ("other.json", "tells nothing of an environment"),
                       ("empty", "is no run"), ("nowhere", "is no run")):  # fmt: skip
        with pytest.raises(StoredError, match=said):
            stored(tmp_path / name)
    answer = loadgen("env", "diff", tmp_path / "empty", "here")
    assert (answer.code, len(answer.error_lines)) == (2, 1)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"environment": 5}, "'environment' is no object"),
        ({"client": {"environment": ["a"]}}, "'environment' is no object"),
        ({"environment": {"libraries": 5}}, "'libraries' are no object"),
        ({"environment": {"limits": {}}, "versions": "3.11"}, "'versions' is no object"),
        ({"environment": {"limits": {}}, "versions": {}, "machine": 1}, "'machine' is no object"),
    ],
)
def test_what_is_shaped_like_no_environment_is_one_line(tmp_path, told, says):
    (tmp_path / "a.json").write_text(json.dumps(told))
    answer = loadgen("env", "diff", tmp_path / "a.json", "here")
    assert (answer.code, answer.out, len(answer.error_lines)) == (2, "", 1)
    assert says in answer.err


def test_a_refused_setting_of_the_server_is_a_mismatch_of_env_and_ends_a_check_early(monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "full", facts.quick)
    monkeypatch.setenv(ONNX_RUNTIME_VARIABLE, "garbage")
    says = f"{ONNX_RUNTIME_VARIABLE}: 'garbage' is not allowed"
    told = loadgen("env", "--json").json
    assert (told["triton"], told["environment"]["variables"][ONNX_RUNTIME_VARIABLE]) == (None, "garbage")
    assert told["mismatches"][0].startswith(says)
    answer = loadgen("env")
    assert answer.code == 0
    assert f"mismatch: {says}" in answer.out
    answer = loadgen("convert", "minilm", "--check-served", "--repository", tmp_path / "repository")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert says in answer.err
    assert "loading" not in answer.err
    assert not (tmp_path / "repository").exists()


def test_env_shows_all_of_it_and_ends_with_a_verdict(monkeypatch):
    monkeypatch.setattr(probe, "_LOADS", {"tokenizers": "{}"})
    told = loadgen("env", "--json").json
    assert told["environment"]["loads"] == {"tokenizers": {"ok": True}}
    assert told["packages"]["numpy"] == version("numpy")
    lines = loadgen("env").out.splitlines()
    assert next(line for line in lines if line.startswith("libraries")).split()[1] == "torch"
    assert lines[-1] == (
        "no known mismatch" if not told["mismatches"] else f"{len(told['mismatches'])} known mismatches"
    )
