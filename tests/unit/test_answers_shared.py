"""Variants of a kind are read by the same: an answer to one is known for the others."""

import numpy as np
import pytest

from loadgen.lab.kinds import make_kinds
from loadgen.records import ModelFacts, TensorSpec, Wanted
from loadgen.target import parse_target
from loadgen.traffic.profile import parse_profile


@pytest.mark.parametrize(("options", "part"), [("", "check"), (", stream: true", "reader")])
def test_variants_share_what_reads_their_answers(options, part):
    profile = parse_profile(
        f"name: t\nkinds: {{k: {{model: m{options}}}}}\n"
        "phases: [{name: a, closed: {users: 1, requests: 1}}]\n",
        "t.yaml",
    )
    facts = ModelFacts("m", "", ("1",), 8, (TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (4,)),))
    [kind] = make_kinds(profile, parse_target("grpc://127.0.0.1:1"), {("m", ""): facts})
    made = kind.messages([Wanted(None)] * 3, np.random.default_rng(1))
    assert len({message.request.body for message in made}) == 3
    readers = {id(getattr(message.request, part)) for message in made}
    assert len(readers) == 1
    assert getattr(made[0].request, part) is not None
