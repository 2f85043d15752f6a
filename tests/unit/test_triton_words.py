"""What a server says when it refuses, made one line; metadata and configuration made ModelFacts."""

from loadgen.records import TensorSpec
from loadgen.triton.facts import model_facts
from loadgen.triton.words import faults, last_lines, load_failure, not_serving, one_line

LOG = """I1130 03:01:48.970187 6116 metrics.cc:770] "Collecting CPU metrics"
+--------+--------+
| Option | Value  |
+--------+--------+

E1130 03:01:54.318861 6116 model_lifecycle.cc:642] "failed to load 'broken' version 1: Internal: cheese"
E1130 03:01:54.326814 6116 model_repository_manager.cc:1460] "Poll failed for model directory 'bad': dynamic batching preferred size must be <= max batch size for bad"
I1130 03:01:55.0 6116 server.cc:1] "Waiting for in-flight requests"
"""
INDEX = [
    {"name": "asleep"},
    {
        "name": "broken",
        "version": "1",
        "state": "UNAVAILABLE",
        "reason": "Internal: cheese\n\nAt:\n  model.py(6)",
    },
    {"name": "up", "version": "2", "state": "READY"},
    {"name": "up", "version": "3", "state": "READY"},
]


def test_a_poll_failure_is_explained_from_the_log():
    said = "failed to load 'bad', failed to poll from model repository"
    assert load_failure("bad", said, LOG, ["bad"]) == (
        "model 'bad' could not be loaded: dynamic batching preferred size must be <= max batch size for bad"
    )
    assert "only in the server's log" in load_failure("bad", said, "", ["bad"])


def test_a_backend_failure_is_the_servers_own_words_on_one_line():
    said = "load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: cheese\n\nAt:\n  m.py(6): x\n;\n"
    assert load_failure("broken", said, LOG, ["broken"]) == (
        "model 'broken' could not be loaded: version 1 is at UNAVAILABLE state: Internal: cheese At: m.py(6): x"
    )


def test_a_model_that_is_not_there_names_those_that_are():
    assert load_failure("nosuch", "failed to poll", "", ["b", "a"]) == (
        "no model 'nosuch' in the server's repository; it has: a, b"
    )


def test_not_serving_tells_unknown_from_unloaded_from_failed_from_wrong_version():
    where = "http://h:1"
    assert (
        not_serving("nosuch", "", INDEX, where, None)
        == "no model 'nosuch' on http://h:1; it has: asleep, broken, up"
    )
    assert "it has none" in not_serving("nosuch", "", [], where, None)
    asleep = not_serving("asleep", "", INDEX, where, "mine")
    assert asleep.startswith(
        "model 'asleep' is known to http://h:1 but not loaded (never loaded); loaded: up; load it"
    )
    assert asleep.endswith(
        "load it with `loadgen serve load asleep --name mine`, or POST v2/repository/models/asleep/load"
    )
    foreign = not_serving("asleep", "", INDEX, where, None)  # `loadgen serve` does not know this server
    assert foreign.endswith("load it with POST v2/repository/models/asleep/load")
    assert "(UNAVAILABLE: Internal: cheese At: model.py(6))" in not_serving("broken", "", INDEX, where, None)
    assert (
        not_serving("up", "9", INDEX, where, None)
        == "model 'up' has no version '9' on http://h:1; loaded: 2, 3"
    )


def test_log_lines_skip_tables_and_prefer_errors():
    assert len(last_lines(LOG, 99)) == 4
    assert [line[:5] for line in faults(LOG, 5)] == ["E1130", "E1130"]
    assert faults("a\n\nb\n", 1) == ["b"]
    no_gpu = 'E1130 04:14:47.0 9 server.cc:241] "CudaDriverHelper has not been initialized."'
    assert faults(f"{no_gpu}\nI1130 loaded\n", 5) == ["I1130 loaded"]
    crash = "terminate called after throwing an instance of 'std::invalid_argument'\n  what():  stol\n"
    assert faults(f"{no_gpu}\n{crash}I1130 04:14 later\n", 5) == crash.splitlines()
    usage = "/x/bin/tritonserver: unrecognized option '--nonsense'\nUsage: tritonserver [options]\n  --help\n"
    assert faults(usage, 5) == ["/x/bin/tritonserver: unrecognized option '--nonsense'"]


def test_one_line_unfolds_escaped_newlines():
    assert one_line("a\\n\\nAt:\n  b\n;\n") == "a At: b"


METADATA = {
    "name": "m",
    "versions": ["1", "3"],
    "inputs": [{"name": "ids", "datatype": "INT64", "shape": ["-1", "-1"]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 384]}],
}


def test_configuration_gives_shapes_without_the_batch_axis():
    config = {
        "max_batch_size": 8,
        "input": [
            {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]},
            {"name": "note", "data_type": "TYPE_STRING", "dims": ["1"], "optional": True},
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [384]}],
        "parameters": {"vocab_size": {"string_value": "30522"}},
    }
    facts = model_facts("3", METADATA, config)
    assert (facts.name, facts.version, facts.versions, facts.max_batch_size) == ("m", "3", ("1", "3"), 8)
    assert facts.inputs == (
        TensorSpec("ids", "INT64", (-1,)),
        TensorSpec("note", "BYTES", (1,), optional=True),
    )
    assert facts.outputs == (TensorSpec("y", "FP32", (384,)),)
    assert facts.parameters == {"vocab_size": "30522"}
    assert facts.config == config


def test_a_configuration_without_max_batch_size_takes_no_batch_axis():
    assert model_facts("", METADATA, {"input": []}).max_batch_size == 0


def test_without_a_configuration_shapes_are_as_told_and_the_batch_size_unknown():
    facts = model_facts("", METADATA, None)
    assert facts.max_batch_size is None
    assert facts.inputs == (TensorSpec("ids", "INT64", (-1, -1)),)
    assert facts.config is None
