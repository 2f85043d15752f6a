"""Field case 28: whether requests were merged is told from the server's counters before and after, and only from them."""

import pytest

from loadgen.analysis.summary import summarise
from tests.support.runs import build, phase, statistics, steady, window

BATCHER = {"models": {"m": {"config": {"dynamic_batching": {}, "max_batch_size": 8}}}}


def summary(path, before, after, requests=800):
    phases = [phase(planned=requests, max_in_flight=32)]
    return summarise(build(path, steady(requests), phases, server=window(before, after), facts=BATCHER))


def codes(told):
    return {doubt["code"] for doubt in told["doubts"]}


def test_800_inferences_in_100_executions_are_batches_of_8(tmp_path):
    told = summary(tmp_path / "run", statistics({1: 50, 8: 3}), statistics({1: 50, 8: 103}))
    assert told["server"]["mean_batch"] == 8
    assert told["server"]["batch_sizes"] == {"8": 100}
    assert (told["server"]["inference_count"], told["server"]["execution_count"]) == (800, 100)
    assert not codes(told) & {"no_batching", "other_clients", "counters_reset"}


def test_a_mean_batch_of_1_is_doubted(tmp_path):
    told = summary(tmp_path / "run", statistics({1: 50}), statistics({1: 850}))
    assert told["server"]["mean_batch"] == 1
    [doubt] = [d for d in told["doubts"] if d["code"] == "no_batching"]
    assert "dynamic batching is on, yet the mean batch was 1.00" in doubt["text"]


def test_other_clients_are_noticed(tmp_path):
    told = summary(tmp_path / "run", statistics({8: 0}), statistics({8: 200}))
    assert "other_clients" in codes(told)
    assert "800 were another client's" in " ".join(d["text"] for d in told["doubts"])


@pytest.mark.parametrize("after", [{8: 60}, {8: 2}])
def test_counters_that_went_back_tell_nothing(tmp_path, after):
    told = summary(tmp_path / "run", statistics({8: 100}), statistics(after))
    assert told["server"]["mean_batch"] is None
    assert told["server"]["resets"] == ["m"]
    assert "counters_reset" in codes(told)
