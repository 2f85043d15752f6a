"""Docs that cannot rot: every verb explains itself with an example, the README names what there is."""

import re
from pathlib import Path

import pytest
import typer.main

from loadgen.cli.app import app
from tests.support.cli import loadgen

ROOT = Path(__file__).parents[2]


def verbs():
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        for sub in getattr(command, "commands", {}):
            yield (name, sub)
        if not getattr(command, "commands", {}):
            yield (name,)


@pytest.mark.parametrize("verb", list(verbs()), ids=" ".join)
def test_every_verb_has_help_with_an_example(verb):
    answer = loadgen(*verb, "--help")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    example = re.search(r"Example: (loadgen [a-z ]+)", text)
    assert example, answer.out
    assert example[1].startswith("loadgen " + " ".join(verb))


@pytest.mark.parametrize("verb", list(verbs()), ids=" ".join)
def test_an_unknown_option_is_one_usage_error(verb):
    answer = loadgen(*verb, "--no-such-option")
    assert answer.code == 2
    assert "--no-such-option" in answer.err


def test_the_readmes_profile_is_a_profile():
    from loadgen.schedule import plan
    from loadgen.traffic.profile import parse_profile

    text = (ROOT / "README.md").read_text()
    first, second = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    every = parse_profile(second, "README.md")
    assert set(every.kinds) == {"tensors", "chat", "decoupled", "stateful", "plain"}
    profile = parse_profile(first, "README.md")
    assert [p.loop for p in plan(profile).phases] == ["closed", "open"]


def test_what_the_readme_names_exists():
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"\b(traffic_profiles/[\w-]+\.yaml)", text):
        assert (ROOT / path).exists()
    targets = set(re.findall(r"\bmake ([a-z-]+)", text))
    assert {"demo", "test", "check", "bench"} <= targets
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_ci_calls_the_readmes_words_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == ["make check test"]
