"""What a command line says of serving, and what is refused of it before a model is loaded."""

import pytest

from loadgen.cli.serving import levels, queues
from loadgen.convert import flavours
from loadgen.convert.config import ConfigError
from loadgen.convert.flavours import require_flavour
from loadgen.convert.options import ConvertOptions
from loadgen.convert.serve_options import (
    Flavour,
    PlanOptions,
    Queue,
    ServeOptionError,
    ServeOptions,
    grid,
    whole_numbers,
)
from loadgen.environment import cuda
from loadgen.records import LoadgenError

H200 = cuda.Device("NVIDIA H200", "9.0", 2**37, "13.0")


@pytest.mark.parametrize(
    ("there", "gpus", "said"),
    [
        (
            cuda.Cuda(why="libcuda.so.1: not found"),
            (0,),
            r"for GPU 0, and there is no GPU \(libcuda.so.1: not found\)",
        ),
        (cuda.Cuda("13.0"), (0,), r"there is no GPU \(the driver names none\)"),
        (
            cuda.Cuda("13.0", (H200, H200)),
            (1, 2),
            "for GPU 2, and there is none beyond GPU 1; check with `loadgen parity`",
        ),
        (cuda.Cuda("13.0", (H200,)), (0,), None),
    ],
)
def test_the_check_needs_its_gpus_here(monkeypatch, there, gpus, said):
    """Before anything is loaded; what is only published may be for another machine."""
    monkeypatch.setattr(cuda, "ask", lambda: there)
    serve = ServeOptions(gpus=gpus)
    require_flavour(ConvertOptions(name="m", serve=serve))
    checked = ConvertOptions(name="m", serve=serve, check_served=True)
    if said is None:
        require_flavour(checked)
        return
    with pytest.raises(ConfigError, match=said):
        require_flavour(checked)


def test_lists_on_the_command_line():
    assert whole_numbers("4, 8", "--preferred") == (4, 8)
    assert grid("1x16, 8x128") == ((1, 16), (8, 128))
    with pytest.raises(ServeOptionError, match="--gpus: '0;1'"):
        whole_numbers("0;1", "--gpus")
    with pytest.raises(ServeOptionError, match="--warmup: '16' is not allowed; batch x length"):
        grid("16")
    with pytest.raises(ServeOptionError, match=r"--warmup: '1x9+' is not allowed"):
        grid("1x" + "9" * 5000)
    assert levels("3:2") == (3, 2)
    assert levels("65535") == (65535, 0)
    for text in ("0", "x", "-1", "3:", "3:0", "3:4", ":1", "65536", "9" * 5000):
        with pytest.raises(ServeOptionError, match="levels or levels:default is"):
            levels(text)


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ({"most": -1}, "most -1 of a queue: must be 0 or more"),
        ({"most": 2**32}, "most 4294967296 of a queue: must be 0 or more, at most 4294967295"),
        (
            {"timeout_us": 10**16},
            "timeout_us 10000000000000000 of a queue: must be 0 or more, at most 9223369200000000",
        ),
        ({"timeout_us": -5}, "timeout_us -5 of a queue"),
        ({"delays": True}, "a queue without a timeout delays nothing"),
        ({"override": True, "most": 3}, "there is none to override"),
    ],
)
def test_queues_that_triton_would_not_take(queue, said):
    with pytest.raises(ServeOptionError, match=said):
        Queue(**queue)


def test_queues_from_the_command_line():
    """A level that is told one thing of its own has the rest of what is told for all."""
    assert queues([], []) == (Queue(), ())
    assert queues(["50ms:delay"], ["100", "3=20"]) == (
        Queue(50_000, delays=True, most=100),
        ((3, Queue(50_000, delays=True, most=20)),),
    )
    assert queues(["2=1s:override:delay"], []) == (
        Queue(),
        ((2, Queue(1_000_000, delays=True, override=True)),),
    )
    assert queues(["1us", "3=2562047h"], ["2=4294967295"]) == (
        Queue(1),
        ((2, Queue(1, most=2**32 - 1)), (3, Queue(9_223_369_200_000_000))),
    )
    assert queues(["1s", "3=0s"], ["007"]) == (Queue(10**6, most=7), ((3, Queue(most=7)),))
    assert queues(["2=1s:reject", "9ms:delay"], []) == (Queue(9_000, delays=True), ((2, Queue(1_000_000)),))


@pytest.mark.parametrize(
    ("timeouts", "mosts", "said"),
    [
        (["50"], [], "--queue-timeout: "),
        (["1ms:wait"], [], "--queue-timeout: 'wait' is not allowed; delay, reject and override are"),
        (["x=1ms"], [], "--queue-timeout: 'x=1ms' is not allowed; VALUE or LEVEL=VALUE is"),
        (["0=1s"], [], "--queue-timeout: '0=1s' is not allowed; VALUE or LEVEL=VALUE is, a LEVEL being 1 to"),
        (["=1s"], [], "--queue-timeout: '=1s' is not allowed; VALUE or LEVEL=VALUE is, a LEVEL being 1 to"),
        (["3="], [], "--queue-timeout: '3=' is not allowed; VALUE or LEVEL=VALUE is"),
        (["3=1ns"], [], "--queue-timeout: '1ns' is not allowed; 1us to 2562047h is, and 0s for no timeout"),
        (["0.1ns"], [], "--queue-timeout: '0.1ns' is not allowed"),
        (["2562048h"], [], "--queue-timeout: '2562048h' is not allowed; 1us to 2562047h is"),
        (
            [],
            ["3=4294967296"],
            "--max-queue: '4294967296' is not allowed; a whole number is, at most 4294967295",
        ),
        ([], ["9" * 5000], "--max-queue: '9+' is not allowed"),
        (["2=1ms", "2=3ms"], [], "--queue-timeout: level 2 given twice"),
        ([], ["5", "6"], "--max-queue: all levels given twice"),
        ([], ["0=5"], "--max-queue: '0=5' is not allowed"),
        ([], ["-5"], "--max-queue: '-5' is not allowed; a whole number is"),
    ],
)
def test_queues_that_cannot_be_read(timeouts, mosts, said):
    with pytest.raises(LoadgenError, match=said):
        queues(timeouts, mosts)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"traffic": "/nonexist"}, "/nonexist"),
        ({"batch": "x"}, "--plan-batch: 'x' is not allowed; min:opt:max is"),
        ({"batch": "1:2:3:x"}, "--plan-batch: '1:2:3:x' is not allowed"),
        ({"batch": "1:8:9" + "9" * 5000}, "--plan-batch: .* is not allowed"),
        ({"batch": "8:4:16"}, "--plan-batch: 8:4:16 is no min:opt:max"),
        ({"server_tensorrt": "abc"}, "--server-tensorrt abc: three numbers are needed, e.g. "),
        ({"server_tensorrt": "10.x.2.5"}, "--server-tensorrt 10.x.2.5: three numbers"),
        (
            {"server_compute": "sm_90"},
            "--server-compute sm_90: a compute capability is two numbers, e.g. 9.0",
        ),
    ],
)
def test_options_that_are_wrong_by_themselves_are_told_before_a_tensorrt_is_looked_for(
    monkeypatch, plan, said
):
    monkeypatch.setattr(flavours.tensorrt, "find_tensorrt", lambda: pytest.fail("it was looked for"))
    with pytest.raises(LoadgenError, match=said):
        require_flavour(
            ConvertOptions(name="m", serve=ServeOptions(flavour=Flavour.TENSORRT, plan=PlanOptions(**plan)))
        )
