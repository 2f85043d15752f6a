"""Request parameters: what is sent, what is refused, what the server would silently not do."""

import pytest

from loadgen.records import ModelFacts
from loadgen.workload.fit import FitError
from loadgen.workload.parameters import request_parameters


def facts(batching=None, *, config=True):
    told = {"name": "m", **({"dynamic_batching": batching} if batching is not None else {})}
    return ModelFacts("m", "", ("1",), 8, (), (), config=told if config else None)


def remark(batching, ns=5_000_000, **more):
    told, remarks = request_parameters("k", facts(batching), server_timeout_ns=ns, **more)
    assert told["timeout"] == -(-ns // 1000)
    return remarks


def test_nothing_asked_is_nothing_sent():
    assert request_parameters("k", facts()) == ({}, [])
    assert request_parameters("k", facts(), priority=0, server_timeout_ns=0, parameters={}) == ({}, [])


def test_values_keep_their_types():
    given = {"a": True, "b": 1, "c": 1.0, "d": "1"}
    told, _ = request_parameters("k", facts({"priority_levels": "2"}), priority=2, parameters=given)
    assert [(k, type(v)) for k, v in told.items()] == [("a", bool), ("b", int), ("c", float), ("d", str), ("priority", int)]  # fmt: skip


@pytest.mark.parametrize("levels", ["3", 3])  # protobuf's JSON form writes uint64 as text
def test_priorities_that_the_model_has(levels):
    model = facts({"priority_levels": levels})
    assert [request_parameters("k", model, priority=p)[0] for p in (0, 1, 3)] == [{}, {"priority": 1}, {"priority": 3}]  # fmt: skip
    with pytest.raises(FitError) as told:
        request_parameters("k", model, priority=4)
    assert str(told.value) == (
        "kind 'k', model 'm': priority 4, but the model has 3 levels;"
        " allowed: 1 (first) to 3, 0 for the model's default"
    )


@pytest.mark.parametrize("batching", [None, {}, {"priority_levels": "0"}])
def test_a_model_without_priority_levels_takes_none(batching):
    with pytest.raises(FitError, match=r"has no priority levels \(dynamic_batching.priority_levels\)"):
        request_parameters("k", facts(batching), priority=1)


def test_a_server_that_does_not_tell_its_configuration_is_asked():
    told = request_parameters("k", facts(config=False), priority=7, server_timeout_ns=1)
    assert told == ({"priority": 7, "timeout": 1}, [])


@pytest.mark.parametrize(
    "name", ["priority", "timeout", "sequence_id", "binary_data_output", "triton_enable_empty_final_response"]
)
def test_parameters_that_are_ours(name):
    with pytest.raises(FitError, match=f"parameter '{name}' is loadgen's own"):
        request_parameters("k", facts(), parameters={name: 1})


def test_a_number_beyond_64_bits():
    assert request_parameters("k", facts(), parameters={"n": 2**63 - 1})[0] == {"n": 2**63 - 1}
    with pytest.raises(FitError, match=r"-2\^63 to 2\^63-1"):
        request_parameters("k", facts(), parameters={"n": 2**63})


def test_timeouts_that_will_not_be_kept():
    allowed = {"allow_timeout_override": True, "default_timeout_microseconds": "5001"}
    assert remark({"default_queue_policy": allowed}) == []
    assert "does not allow it" in remark(None)[0]
    assert "does not allow it" in remark({"default_queue_policy": {**allowed, "allow_timeout_override": False}})[0]  # fmt: skip
    (told,) = remark({"default_queue_policy": allowed}, 5_001_000)
    assert told == (
        "kind 'k', model 'm': server_timeout of 5001 us will not be kept: a request may only shorten the policy's"
        " own timeout, which is 5001 us"
    )


def test_the_policy_of_the_priority_counts():
    allowed = {"allow_timeout_override": True, "default_timeout_microseconds": "90000"}
    batching = {
        "priority_levels": "2",
        "default_priority_level": "2",
        "priority_queue_policy": {"1": allowed},
    }
    assert remark(batching, priority=1) == []
    assert len(remark(batching, priority=2)) == 1
    assert len(remark(batching)) == 1  # level 2
    assert remark({**batching, "default_priority_level": "1"}) == []
