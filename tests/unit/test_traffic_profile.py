import hashlib
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import BaseModel, ValidationError

from loadgen.lab.kinds import make_kinds
from loadgen.records import LoadgenError, QueueFull, Wanted
from loadgen.target import parse_target
from loadgen.traffic import chat, http_request, inputs, lengths, network, phases, shared_memory, trace
from loadgen.traffic import profile as module
from loadgen.traffic.profile import ProfileError, load_profile, parse_profile

DIALECTS = (http_request, shared_memory)
REFERENCE = module.__doc__.split("```yaml")[1].split("```")[0]
SAMPLE = (
    Path(__file__).parents[1] / "fixtures/profile-1.yaml"
).read_text()  # what is refused is a change of this
SMALL = """\
name: small
kinds:
  short: {model: minilm, length: 32}
phases:
  - name: steady
    open: {rate: [{duration: 10s, at: 20/s}]}
"""


def refused(text, name="p.yaml"):
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, name)
    lines = str(caught.value).split("\n")
    assert list(caught.value.problems) == lines
    assert all(line.startswith(name) for line in lines)
    return lines


def changed(old, new, text=SAMPLE):
    assert text.count(old) >= 1
    return text.replace(old, new, 1)


def test_the_reference_is_itself_a_profile():
    profile = parse_profile(REFERENCE, "r.yaml")
    short, other = profile.kinds["short"], profile.kinds["other"]
    talk = profile.kinds["talk"]
    assert (talk.output.law, talk.chat.turns, talk.chat.think_ns) == (64, 3, 2 * 10**9)
    pairs = profile.kinds["summary"].lengths
    assert [(p.in_, p.out, p.weight) for p in pairs] == [(1000, 20, 3.0), (50, 400, 1.0)]
    assert (short.cancel.share, short.cancel.after_ns) == (0.1, 500 * 10**6)
    assert (short.name, short.model, short.version, short.weight, short.batch) == (
        "short",
        "minilm",
        "1",
        3.0,
        1,
    )
    assert (short.timeout_ns, other.timeout_ns) == (5 * 10**9, 60 * 10**9)
    assert [(bar.low, bar.high, bar.weight) for bar in other.length.law] == [(1, 16, 5.0), (32, 32, 2.0)]
    assert (profile.cap.in_flight, profile.cap.when_full) == (256, "wait")
    warm, ramp, bursty, users, replay = profile.phases
    assert (replay.trace.speed, replay.trace.kind, replay.trace.clamp.input) == (10, "talk", 4000)
    assert (profile.network.delay_ns, profile.network.bytes_per_s) == (20 * 10**6, 10 * 2**20)
    assert (warm.warmup, warm.closed.users, warm.closed.requests, warm.closed.think_ns) == (
        True,
        8,
        64,
        10**7,
    )
    assert [(s.start_per_s, s.end_per_s) for s in ramp.open.rate] == [(10.0, 100.0), (100.0, 100.0)]
    assert (ramp.open.duration_ns, ramp.open.expected) == (60 * 10**9, pytest.approx(30 * 55 + 3000))
    assert (ramp.open.arrivals.burstiness, bursty.open.arrivals.burstiness) == (1.0, 4.0)
    assert (users.closed.duration_ns, users.closed.requests) == (20 * 10**9, None)
    assert [o.metric for o in profile.objectives] == [
        "latency",
        "failure rate",
        "requests/s",
        "mean batch",
        "ttft",
        "output tokens/s",
        "goodput",
        "service",
        "latency",
        "first request",
    ]
    assert (profile.seed, profile.target) == (7, "grpc://127.0.0.1:8001")


def test_the_reference_names_every_key():
    words = set(re.findall(r"[a-z_]+(?=:)|wait|drop|uniform|poisson", REFERENCE))
    for room in (module, phases, lengths, inputs):
        for part in vars(room).values():
            own = getattr(part, "__module__", "") not in [
                room.__name__ for room in (*DIALECTS, chat, trace, network)
            ]
            if own and isinstance(part, type) and issubclass(part, BaseModel):
                assert {field.alias or name for name, field in part.model_fields.items()} <= words, part


@pytest.mark.parametrize("room", DIALECTS)
def test_a_dialects_reference_names_every_key_and_is_one(room):
    text = re.search(r"```yaml\n(.*?)```", room.__doc__, re.DOTALL)[1]
    words = set(re.findall(r"[a-z_]+(?=:)", text))
    for part in vars(room).values():
        if isinstance(part, type) and issubclass(part, BaseModel) and part.__module__ == room.__name__:
            assert {field.alias or name for name, field in part.model_fields.items()} <= words, part
    kinds = "kinds:\n" + text if not text.startswith("kinds:") else text
    profile = parse_profile(kinds + "phases: [{name: load, closed: {users: 1, requests: 1}}]\n", "p")
    assert len(profile.kinds) == 1


def test_a_plain_http_kind_has_no_model_and_any_other_has_one():
    def said(kind):
        with pytest.raises(ProfileError) as caught:
            parse_profile(
                f"kinds: {{k: {kind}}}\nphases: [{{name: load, closed: {{users: 1, requests: 1}}}}]", "p"
            )
        return str(caught.value)

    assert said("{length: 4}") == "p:1: kinds.k.model: is missing; write e.g. model: minilm"
    assert (
        said("{model: m, http: {path: /}}")
        == "p:1: kinds.k.model: does not go with http; take one of them out"
    )
    assert "kinds.k.shared_memory: does not go with http" in said(
        "{http: {path: /}, shared_memory: {inputs: true}}"
    )
    assert "kinds.k.http: nothing of the request takes a length" in said("{length: 4, http: {path: /}}")
    assert "needs inputs: true, outputs: true, or both" in said("{model: m, shared_memory: {}}")
    assert "'64' is not a size: write a number and one of" in said(
        "{model: m, shared_memory: {outputs: {y: '64'}}}"
    )


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("{model: m, length: 3, chat: {temperature: 0, extra: {temperature: 1}}}", "chat.extra.temperature: is made by the kind"),
        ("{model: m, length: 3, output: 5, chat: {extra: {max_tokens: 1}}}", "chat.extra.max_tokens: is what output says"),
        ("{model: m, length: 3, completion: {extra: {prompt: x}}}", "completion.extra.prompt: is made by the kind"),
        ("{model: m, length: 3, output: 5, generate: {max_tokens_key: p.m, extra: {p: {m: 3}}}}", "generate.extra.p.m: is what output says"),
        ("{model: m, length: 3, chat: {think: 2s}}", "chat.think: is between turns"),
        ("{model: m, length: 3, version: '2', completion: {}}", "version: does not go with completion"),
        ("{model: m, chat: {prompts: {file: a.txt, field: x}}}", "chat.prompts.field: is of the rows of a .jsonl file"),
        ("{model: m, chat: {prompts: {file: a.jsonl, send: [a], ignore: [a]}}}", "chat.prompts.ignore: 'a' is to be sent too"),
        ("{model: m, data: {file: a.jsonl, ignore: [b], ingore: [c]}}", "data.ingore: unknown key (did you mean 'ignore'?)"),
        ("{model: m, distinct: some}", "distinct: 'some' is not one of: all"),
    ],
)  # fmt: skip
def test_what_would_be_dropped_is_an_error_with_the_keys_path(kind, says):
    [line] = refused(f"kinds: {{k: {kind}}}\nphases: [{{name: load, closed: {{users: 1, requests: 1}}}}]")
    assert line.startswith(f"p.yaml:1: kinds.k.{says}")


@pytest.mark.parametrize(("char", "escape"), [("\x85", r"\N"), ("\u2028", r"\L"), ("\u2029", r"\P")])
def test_characters_at_which_yaml_ends_a_line_are_written_as_escapes(char, escape):
    """PyYAML makes a space of U+0085, and ends a comment at any of them."""
    whole = "kinds: {k: {model: m, length: 3, chat: {system: %s}}}\nphases: [{name: l, closed: {users: 1, requests: 1}}]"
    [line] = refused(whole % f'"a{char}b"')
    assert (
        line
        == f"p.yaml:1: holds U+{ord(char):04X}, at which YAML ends a line; write it in double quotes as {escape}"
    )
    for text in (
        whole % f'"a{escape}b"',
        json.dumps(yaml.safe_load(whole % "S")).replace('"S"', f'"a{char}b"'),
    ):
        assert parse_profile(text, "p.yaml").kinds["k"].chat.system == f"a{char}b"


def test_half_a_character_is_refused_by_its_path():
    data = {"kinds": {"k": {"model": "m", "length": 3, "chat": {"system": "\ud800"}}}, "phases": []}
    assert refused(json.dumps(data)) == [
        r"p.yaml: kinds.k.chat.system: '\ud800' holds half a character, which has no UTF-8 form"
    ]


def test_it_keeps_its_text():
    profile = parse_profile(SMALL, "p.yaml")
    assert profile.text == SMALL
    assert profile.sha256 == hashlib.sha256(SMALL.encode()).hexdigest()
    again = pickle.loads(pickle.dumps(profile))
    assert (again, again.text, again.kinds["short"].name) == (profile, SMALL, "short")


def test_it_is_frozen():
    profile = parse_profile(SMALL, "p.yaml")
    with pytest.raises(ValidationError):
        profile.seed = 5
    with pytest.raises(ValidationError):
        profile.kinds["short"].weight = 5


def test_defaults():
    profile = parse_profile(SMALL.replace("name: small\n", ""), "dir/some.yaml")
    kind, phase = profile.kinds["short"], profile.phases[0]
    assert (profile.name, profile.seed, profile.target, profile.cap, profile.objectives) == (
        "some",
        0,
        None,
        None,
        (),
    )
    assert (kind.version, kind.weight, kind.batch, kind.timeout_ns, kind.length.law) == (
        "",
        1.0,
        1,
        60 * 10**9,
        32,
    )
    assert (phase.warmup, phase.open.arrivals.burstiness) == (False, 1.0)


def test_json_is_a_profile_too():
    data = {
        "name": "j",
        "kinds": {"k": {"model": "m", "length": {"normal": {"mean": 1e1, "sd": 2, "min": 1, "max": 20}}}},
        "phases": [{"name": "p", "closed": {"users": 2, "requests": 3}}],
    }
    text = json.dumps(data, indent="\t").replace("10.0", "1e1")
    assert parse_profile(text, "j.json").kinds["k"].length.law.mean == 10.0
    assert refused('{"name": "a", "name": "b"}', "j.json") == [
        "j.json: the key 'name' is given twice in one object; keep one"
    ]


# What is refused: the change, and what the (first) line must be.
WRONG = [
    ("seed: 7", "sede: 7", "3: sede: unknown key (did you mean 'seed'?); allowed: name, seed, target, kinds, cap, network, phases, objectives"),
    ("seed: 7", "seed: true", "3: seed: true is not a whole number"),
    ("seed: 7", "seed: 7.5", "3: seed: 7.5 is not a whole number"),
    ("seed: 7", 'seed: "7"', "3: seed: '7' is not a whole number; write 7 without quotes"),
    ("seed: 7", "seed: -1", "3: seed: -1 is not allowed; allowed: 0 or more"),
    ("seed: 7", "seed:", "3: seed: has no value; give one or delete the line"),
    ('version: "1"', "version: 1", "8: kinds.short.version: 1 is not text; put it in quotes"),
    ("weight: 3", "weight: -3", "9: kinds.short.weight: -3 is not allowed; allowed: 0 or more"),
    ("weight: 3", "weight: true", "9: kinds.short.weight: true is not a number"),
    ("weight: 3", "weight: .inf", "9: kinds.short.weight: inf is not a finite number"),
    ("batch: 1", "batch: 0", "10: kinds.short.batch: 0 is not allowed; allowed: 1 or more"),
    ("timeout: 5s", "timeout: 5", "12: kinds.short.timeout: 5 has no unit; write e.g. 250ms"),
    ("timeout: 5s", "timeout: true", "12: kinds.short.timeout: true where 250ms or the like is needed"),
    ("timeout: 5s", "timeout: -5s", "12: kinds.short.timeout: '-5s' is negative; write e.g. 250ms"),
    ("timeout: 5s", "timeout: 0s", "12: kinds.short.timeout: '0s' is no time at all; allowed: more than 0, e.g. 30s"),
    ("timeout: 5s", "timeout: 900h", "12: kinds.short.timeout: '900h' is longer than 31 days (744h)"),
    ("min: 4, max: 128}}", "min: 129, max: 128}}", "11: kinds.short.length.lognormal: min 129 is more than max 128; swap them"),
    ("min: 4, max: 128}}", "min: 40, max: 128}}", "11: kinds.short.length.lognormal: median 32 is outside min 40 to max 128"),
    ("min: 4, max: 128}}", "min: 0, max: 128}}", "11: kinds.short.length.lognormal.min: 0 is not allowed; allowed: 1 or more"),
    ("sigma: 0.6, ", "", "11: kinds.short.length.lognormal.sigma: is missing; write e.g. sigma: 0.6"),
    ("{lognormal: {", "{fixed: 3, lognormal: {", "11: kinds.short.length: needs exactly one of fixed, uniform, normal, lognormal, histogram; given: fixed and lognormal"),
    ("at: 32", "at: 16", "20: kinds.other.length.histogram: 1 to 16 and 16 to 16 overlap; move one"),
    ("weight: 5}, {at: 32, weight: 2}", "weight: 0}, {at: 32, weight: 0}", "20: kinds.other.length.histogram: every weight is 0; give at least one range a weight"),
    ("{at: 32, weight: 2}", "{from: 32, weight: 2}", "20: kinds.other.length.histogram[1]: needs either at, or from and to, e.g. {from: 1, to: 16, weight: 5}"),
    ("max: 30521", "max: -1", "22: kinds.other.inputs.input_ids.integers: min 0 is more than max -1; swap them"),
    ("{integers: {min: 0, max: 30521}}", "{shape: [3, 0]}", '22: kinds.other.inputs.input_ids.shape[1]: 0 is no dimension; allowed: a whole number of 1 or more, or "length"'),
    ("when_full: wait", "when_full: dorp", "27: cap.when_full: 'dorp' (did you mean 'drop'?) is not one of: wait, drop"),
    ("{in_flight: 256,", "{in_flight: 0,", "27: cap.in_flight: 0 is not allowed; allowed: 1 or more"),
    ("requests: 64", "requests: 7", "31: phases[0].closed.requests: 7 warm-up requests for 8 users leave some of the server's slots cold; allowed: 8 or more (several a user is better)"),
    ("users: 8", "users: 0", "31: phases[0].closed.users: 0 is not allowed; allowed: 1 or more"),
    ("arrivals: poisson", "arrivals: poison", "34: phases[1].open.arrivals: 'poison' (did you mean 'poisson'?) allowed: poisson, uniform, {gamma: {burstiness: 4}}"),
    ("arrivals: poisson", "arrivals: gamma", "34: phases[1].open.arrivals: 'gamma' needs its burstiness: allowed: poisson, uniform, {gamma: {burstiness: 4}}"),
    ("burstiness: 4}}, rate", "burstiness: 0}}, rate", "39: phases[2].open.arrivals.gamma.burstiness: 0 is not allowed; allowed: more than 0"),
    ("from: 10/s", "from: -10/s", "36: phases[1].open.rate[0].from: '-10/s' is negative; write e.g. 100/s"),
    ("from: 10/s", "from: 10", "36: phases[1].open.rate[0].from: 10 has no unit; write e.g. 100/s"),
    ("from: 10/s", "from: 10/d", "36: phases[1].open.rate[0].from: '10/d' is not a rate: write a number per s, m or h, e.g. \"200/s\""),
    ("{duration: 30s, from: 10/s", "{duration: 0s, from: 10/s", "36: phases[1].open.rate[0].duration: '0s' is no time at all; allowed: more than 0, e.g. 30s"),
    ("from: 10/s, to: 100/s", "from: 10/s", "36: phases[1].open.rate[0]: needs either at, or from and to, e.g. {duration: 30s, from: 10/s, to: 100/s}"),
    ("rate: [{duration: 20s, at: 50/s}]", "rate: [{duration: 20s, at: 0/s}]", "39: phases[2].open.rate: only 0 requests would be expected in the whole phase; allowed: 1 or more"),
    ("rate: [{duration: 20s, at: 50/s}]", "rate: []", "39: phases[2].open.rate: is empty; allowed: at least 1"),
    ("duration: 20s}\n", "}\n", "41: phases[3].closed: would never end; give it a duration, a number of requests, or both"),
    ("closed: {users: 16, duration: 20s}", "warmup: false", "40: phases[3]: needs exactly one of open, closed, trace; given: none"),
    ("closed: {users: 16, duration: 20s}", "closed: {users: 16, duration: 20s}\n    open: {rate: [{duration: 1s, at: 1/s}]}", "40: phases[3]: needs exactly one of open, closed, trace; given: open and closed"),
    ("name: users", "name: ramp", "40: phases[3].name: 'ramp' is the name of phases[1] too; give it its own"),
    ("- name: users", "- name: users\n    warmup: true", "41: phases[3].warmup: a warm-up after phases[1]; put warm-ups first"),
    ("at: 100/s", "at: 100000000/s", "28: phases: 3,000,002,714 requests are planned; allowed: 50,000,000; lower a rate or a time"),
    ("short: service", "shrt: service", "47: objectives[4]: there is no kind 'shrt' (did you mean 'short'?); allowed: short, other"),
    ("latency p99 < 250ms", "latency p99 < 250", "43: objectives[0]: objective 'latency p99 < 250': '250' is not a duration: write a number and one of ns, us, ms, s, m, h, e.g. \"250ms\""),
    ("grpc://127.0.0.1:8001", "gprc://h", "4: target: target 'gprc://h': unknown scheme 'gprc'; allowed: http://host:8000, https://…, grpc://host:8001, grpcs://… or openai+http://host:8000/v1"),
    ("  short:\n", "  sh:ort:\n", "6: kinds.sh:ort: the kind's name 'sh:ort' may hold letters, digits, '_', '-' and '.' only"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line"), WRONG)
def test_refused_with_path_value_and_what_is_allowed(old, new, line):
    lines = refused(changed(old, new))
    assert lines[0] == f"p.yaml:{line}"


def test_every_fault_has_its_line():
    text = changed("seed: 7", "seed: x", changed("batch: 1", "batch: 0", changed("users: 16", "users: -1")))
    assert [line.split(": ")[1] for line in refused(text)] == [
        "seed",
        "kinds.short.batch",
        "phases[3].closed.users",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "p.yaml: empty; a profile needs kinds and phases (see `loadgen profile keys`)"),
        ("# nothing\n", "p.yaml: empty; a profile needs kinds and phases (see `loadgen profile keys`)"),
        ("- a\n- b\n", "p.yaml: ['a', 'b'] where keys are needed: name, seed, target, kinds, cap, network, phases, objectives"),
        ("name: a\nseed: 1\nname: b\n", "p.yaml:3: the key 'name' is given twice (also on line 1); keep one"),
        ("a: [1\nb: 2\n", "p.yaml:2: not YAML: expected ',' or ']', but got ':'"),
        ("a: !!python/object/apply:os.system ['true']\n", "p.yaml:1: not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("--- \na: 1\n---\nb: 1\n", "p.yaml:3: not YAML: but found another document"),
        ("a: 2024-99-99\n", "p.yaml: not YAML: month must be in 1..12"),
        ("a: &a [*a]\n", "p.yaml: expands to more than a traffic profile needs (aliases, nesting)"),
        ("[" * 5000, "p.yaml: nested too deep for a traffic profile"),
        ("a: " + "x" * 300_000, "p.yaml: larger than 256 KiB, which no traffic profile needs"),
    ],
)  # fmt: skip
def test_no_document(text, line):
    assert refused(text) == [line]


def test_aliases_cannot_blow_a_text_up():
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    assert refused(bomb) == ["p.yaml: expands to more than a traffic profile needs (aliases, nesting)"]


def test_aliases_may_share():
    text = SMALL.replace("length: 32}", "length: &l {fixed: 9}}\n  other: {model: m, length: *l}")
    assert [kind.length.law for kind in parse_profile(text, "p").kinds.values()] == [9, 9]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kinds:\n  short: {model: minilm, length: 32}\n", "", "kinds: is missing; write e.g. kinds: {short: {model: minilm, length: 32}}"),
        ("kinds:\n  short: {model: minilm, length: 32}\n", "kinds: {}\n", "kinds: is empty; allowed: at least 1"),
        ("length: 32", "weight: 0", "kinds: every weight is 0, so nothing would be sent; give at least one a weight"),
        ("- name: steady", "- name: steady\n    warmup: true", "phases: all are warm-ups, so nothing would be measured; add one without warmup: true"),
        ("open: {rate: [{duration: 10s, at: 20/s}]}", "open: 5", "phases[0].open: 5 where keys are needed: arrivals, rate"),
        ("length: 32", "length: true", "kinds.short.length: true where keys are needed: fixed, uniform, normal, lognormal, histogram"),
        ("length: 32", "length: 0", "kinds.short.length.fixed: 0 is not allowed; allowed: 1 or more"),
        ("name: small", "name: ''", "name: is empty; give it a text"),
    ],
)  # fmt: skip
def test_small_faults(old, new, says):
    lines = refused(changed(old, new, SMALL))
    assert lines[0].split(": ", 1)[1] == says


def test_a_pause_inside_a_phase_is_allowed():
    text = SMALL.replace("[{duration: 10s, at: 20/s}]", "[{duration: 1s, at: 5/s}, {duration: 1s, at: 0/s}]")
    assert parse_profile(text, "p").phases[0].open.expected == 5.0


def test_files(tmp_path):
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load_profile(good).name == "small"
    (tmp_path / "latin.yaml").write_bytes("name: caf\xe9".encode("latin-1"))
    for name, says in (
        ("none.yaml", "no such file"),
        (".", "is a folder"),
        ("latin.yaml", "not UTF-8 text (byte 9)"),
    ):
        with pytest.raises(ProfileError, match=re.escape(f"{tmp_path / name}: {says}")):
            load_profile(tmp_path / name)
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(Path("a\0b"))


@pytest.mark.parametrize(
    ("full", "said"),
    [
        ("{}", "kinds.k.full: is empty; give it status, words or both"),
        ("{status: [200]}", "kinds.k.full.words: status 200 alone is no refusal; add words"),
        ("{status: [17]}", "17 is no status of an answer; allowed: HTTP 200 to 599, gRPC 1 to 16"),
        ("{status: [0]}", "0 is no status of an answer"),
        ("{status: [600]}", "600 is no status of an answer"),
        ("{words: ['']}", "kinds.k.full.words[0]"),
        ("{word: [busy]}", "kinds.k.full.word"),
    ],
)
def test_what_means_full_is_checked(full, said):
    text = f"kinds: {{k: {{model: m, full: {full}}}}}\nphases: [{{name: a, closed: {{users: 1, requests: 1}}}}]\n"
    with pytest.raises(ProfileError) as why:
        parse_profile(text, "p.yaml")
    assert said in str(why.value)


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("http: {path: /x, json: {a: 1}}", "http://127.0.0.1:1"),
        ("model: m, chat: {}, length: 4", "openai+http://127.0.0.1:1/v1"),
        ("model: m, generate: {}, length: 4", "http://127.0.0.1:1"),
    ],
)
def test_every_request_of_a_kind_knows_what_means_full(kind, url):
    text = f"kinds: {{k: {{{kind}, full: {{status: [503, 14], words: [Busy]}}}}}}\nphases: [{{name: a, closed: {{users: 1, requests: 1}}}}]\n"
    [maker] = make_kinds(parse_profile(text, "p"), parse_target(url), {})
    wanted = Wanted(4) if "length" in kind else Wanted(None)
    [message] = maker.messages([wanted], np.random.default_rng(1))
    assert message.request.full == QueueFull(frozenset((503, 14)), ("busy",))


PHASED = """
name: p
kinds: {k: {model: m}}
phases:
  - {name: warm, warmup: true, closed: {users: 1, requests: 1}}
  - {name: peak, open: {rate: [{duration: 1s, at: 5/s}]}}
objectives: ["WANTED"]
"""


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("latency p50 in phase peek < 1s", "no measured phase 'peek' (did you mean 'peak'?); allowed: peak"),
        ("latency p50 in phase warm < 1s", "no measured phase 'warm'"),
        ("j: latency p50 < 1s", "no kind 'j'"),
    ],
)
def test_an_objective_names_what_the_profile_has(wanted, says):
    with pytest.raises(LoadgenError) as refused:
        parse_profile(PHASED.replace("WANTED", wanted), "p.yaml")
    assert says in str(refused.value)
    profile = parse_profile(PHASED.replace("WANTED", "latency p50 in phase peak < 1s"), "p.yaml")
    with pytest.raises(LoadgenError) as refused:
        profile.with_objectives([wanted])
    assert says in str(refused.value)


def test_other_objectives_leave_the_profile_as_it_was():
    profile = parse_profile(PHASED.replace("WANTED", "latency p50 < 1s"), "p.yaml")
    changed = profile.with_objectives(["k: latency p99 < 2s", "failure rate < 1%"])
    assert [o.text for o in changed.objectives] == ["k: latency p99 < 2s", "failure rate < 1%"]
    assert [o.text for o in profile.objectives] == ["latency p50 < 1s"]
    assert (changed.text, changed.sha256) == (profile.text, profile.sha256)
