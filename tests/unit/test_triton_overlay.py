"""Configurations under changes, and what is refused before the server is asked (it hides the reason)."""

import pytest

from loadgen.traffic.changes import Changes
from loadgen.triton.overlay import OverlayError, check, only_instances_differ, overlaid

BASE = {
    "name": "m",
    "backend": "python",
    "max_batch_size": 8,
    "input": [
        {"name": "A", "data_type": "TYPE_FP32", "dims": [-1]},
        {"name": "B", "data_type": "TYPE_FP32", "dims": [1]},
    ],
    "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 1}],
    "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 100},
    "parameters": {"threads": {"string_value": "1"}},
}


def laid(**keys):
    config = overlaid(BASE, Changes.model_validate(keys))
    check(config)
    return config


def test_each_setting_lands_where_triton_reads_it():
    config = laid(
        max_batch_size=4, preferred=[2, 4], delay="2ms", instances=3, ragged=True, priorities=3,
        queue={"timeout": "1s", "action": "delay", "max_size": 64, "override": True},
        set={"parameters.threads.string_value": "2", "instance_group.0.kind": "KIND_GPU", "version_policy.latest.num_versions": 1},
    )  # fmt: skip
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"] == {
        "preferred_batch_size": [2, 4],
        "max_queue_delay_microseconds": 2000,
        "priority_levels": 3,
        "default_priority_level": 2,
        "default_queue_policy": {
            "timeout_action": "DELAY",
            "default_timeout_microseconds": 1_000_000,
            "allow_timeout_override": True,
            "max_queue_size": 64,
        },
    }
    assert config["instance_group"] == [{"name": "m_0", "kind": "KIND_GPU", "count": 3}]
    assert [tensor["allow_ragged_batch"] for tensor in config["input"]] == [True, True]
    assert config["parameters"] == {"threads": {"string_value": "2"}}
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert BASE["max_batch_size"] == 8  # untouched


def test_the_servers_own_preferred_size_goes_with_the_size_it_came_from():
    """Triton tells [max_batch_size] where none is named: kept, a smaller max_batch_size could not be loaded."""
    assert laid(max_batch_size=4)["dynamic_batching"] == {"max_queue_delay_microseconds": 100}
    assert laid(batching=False).get("dynamic_batching") is None
    assert overlaid({"name": "m"}, Changes.model_validate({"batching": True}))["dynamic_batching"] == {}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"preferred": [4, 16]}, "preferred_batch_size 16 is more than max_batch_size 8"),
        ({"max_batch_size": 0}, "dynamic_batching needs a max_batch_size of 1 or more; it is 0"),
        ({"priorities": 2, "preserve_ordering": True}, "preserve_ordering goes with neither"),
        ({"set": {"max_batchsize": 4}}, "(did you mean 'max_batch_size'?)"),
        ({"set": {"dynamic_batching.delay": 4}}, 'no field named "delay"'),
        ({"set": {"instance_group.3.count": 4}}, "'3' is no place in the list; allowed: 0 to 0"),
        ({"set": {"name.x": 4}}, "name is 'm', which has no parts"),
        ({"set": {"max_batch_size": "many"}}, "max_batch_size"),
    ],
)
def test_what_triton_would_refuse_is_said_before(keys, said):
    with pytest.raises(OverlayError) as refused:
        laid(**keys)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_resize_is_told_from_a_reload():
    one, two, other = laid(), laid(instances=2), laid(instances=2, delay="1ms")
    assert only_instances_differ(one, two)
    assert not only_instances_differ(one, one)
    assert not only_instances_differ(one, other)
