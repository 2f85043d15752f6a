"""A plan that was saved is the plan."""

import dataclasses

import numpy as np
import pytest

from loadgen.planfile import load_plan, save_plan
from loadgen.records import LoadgenError
from loadgen.schedule import plan
from loadgen.traffic.profile import parse_profile

PROFILE = """
name: t
seed: 3
kinds:
  a: {model: m, length: {uniform: {min: 4, max: 90}}}
  b: {model: m, chat: {}, lengths: [{in: 100, out: 7}, {in: 3, out: 50}], weight: 2}
phases:
  - {name: warm, warmup: true, closed: {users: 2, requests: 9, think: 5ms}}
  - {name: load, open: {rate: [{duration: 10s, at: 40/s}]}}
"""


def test_it_comes_back_bit_for_bit(tmp_path):
    profile = parse_profile(PROFILE, "p.yaml")
    made = plan(profile)
    save_plan(made, tmp_path / "plan.arrow", profile.sha256)
    back, sha = load_plan(tmp_path / "plan.arrow", made.kinds)
    assert (sha, back.seed, back.kinds) == (profile.sha256, 3, ("a", "b"))
    for old, new in zip(made.phases, back.phases, strict=True):
        for field in dataclasses.fields(old):
            a, b = getattr(old, field.name), getattr(new, field.name)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype, field.name
                assert a.tobytes() == b.tobytes(), field.name
            else:
                assert a == b, field.name


def test_refusals_are_one_line(tmp_path):
    profile = parse_profile(PROFILE, "p.yaml")
    path = tmp_path / "plan.arrow"
    save_plan(plan(profile), path, profile.sha256)
    with pytest.raises(LoadgenError, match="does not exist yet"):
        save_plan(plan(profile), path, profile.sha256)
    with pytest.raises(LoadgenError, match="is for the kinds a, b; the profile has c"):
        load_plan(path, ("c",))
    (tmp_path / "x").write_text("no plan")
    with pytest.raises(LoadgenError, match="not a plan of loadgen"):
        load_plan(tmp_path / "x", ("a", "b"))
    with pytest.raises(LoadgenError, match="No such file"):
        load_plan(tmp_path / "y", ("a", "b"))


def test_a_plan_of_another_profile_says_so(tmp_path):
    from loadgen.lab.target import planned

    profile = parse_profile(PROFILE, "p.yaml")
    save_plan(plan(profile), tmp_path / "plan.arrow", profile.sha256)
    same, other = (parse_profile(text, "p.yaml") for text in (PROFILE, PROFILE.replace("40/s", "41/s")))
    assert planned(same, 3, tmp_path / "plan.arrow").phases[0].facts is None
    told = planned(other, 3, tmp_path / "plan.arrow").phases[0].facts["said"]
    assert told[0].endswith("was made from another text of the profile")
