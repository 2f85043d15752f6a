"""The sweep: the door where a YAML text becomes batching configurations, load levels and an order of blocks.

It must not know servers, clocks or files: which block comes when is a function of the seed alone.  Every key:

```yaml
name: batching                     # default: the file's name
seed: 7                            # order of the blocks, and what they send; default 0
profile: ../traffic_profiles/mixed-lengths.yaml    # whose kinds are sent; its phases and objectives are not
model: minilm                      # whose configuration changes; default: the one model of the profile
loads: [{users: 4}, {users: 16, think: 10ms}, {rate: 40/s, arrivals: uniform}]
block: 10s                         # measured time of one block
repeats: 3                         # blocks of each cell (configuration x load); default 3
warm_up: 30s                       # the longest time a loaded model may take until it is steady; default 30s
best: requests/s                   # default; requests/s | items/s, or latency | service pNN | mean, lowest
objectives: ["latency p99 < 500ms", "failure rate < 1%"]      # what the best must meet
base: {max_batch_size: 16}         # changes under every configuration
configurations:                    # by name, and/or a grid: every combination
  - {name: as published}
  - {name: wait, preferred: [4, 8], delay: 5ms, queue: {timeout: 1s, action: reject, max_size: 64}}
  - {name: any field, set: {instance_group.0.kind: KIND_CPU, parameters.threads.string_value: "2"}}
grid:
  max_batch_size: [4, 16]
  batching: [true, false]
  delay: [0ms, 2ms]
  instances: [1, 2]
```
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from loadgen.records import LoadgenError
from loadgen.traffic.changes import UNCHANGED, Changes, Grid, Named, name_of, shown_value
from loadgen.traffic.document import ProfileError, read_document, read_text
from loadgen.traffic.objective import Objective, parse_objective
from loadgen.traffic.parts import (
    DurationNs,
    DurationOrZeroNs,
    FaultsError,
    Many,
    Name,
    Part,
    RatePerS,
    Written,
    as_tuple,
)
from loadgen.traffic.phases import Arrivals
from loadgen.traffic.problems import problems
from loadgen.traffic.profile import TrafficProfile, parse_profile
from loadgen.traffic.words import show_value
from loadgen.units import show_ns

MOST_BLOCKS = 10_000
_RATES = ("requests/s", "items/s")
_WARM_UP_SHARE, _LEAST_WARM_UP_NS = 0.2, 10**9
_BLOCK, _WARM = 0xB10C, 0x3A43  # what a derived seed is for
_REQUESTS_A_USER = 2  # of a block's own warm-up


class Load(Part):
    """One level of load: so many users, or so many requests a second."""

    users: Annotated[int, Field(ge=1, le=100_000)] | None = None
    think_ns: DurationOrZeroNs = Field(0, alias="think")
    rate_per_s: RatePerS | None = Field(None, alias="rate")
    arrivals: Arrivals | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.users is None) == (self.rate_per_s is None):
            raise ValueError("needs exactly one of users, rate, e.g. {users: 8} or {rate: 40/s}")
        if self.users is None and self.think_ns:
            raise FaultsError((("think",), "goes with users only"))
        if self.users is not None and self.arrivals is not None:
            raise FaultsError((("arrivals",), "goes with rate only"))
        return self

    def __str__(self) -> str:
        if self.users is not None:
            think = f", think {show_ns(self.think_ns)}" if self.think_ns else ""
            return f"{self.users} user{'' if self.users == 1 else 's'}{think}"
        law = "" if self.arrivals is None else f" {self.arrivals}"
        return f"{self.rate_per_s:g}/s{law}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One setting of the server under test; `name` tells it from the others."""

    name: str
    changes: Changes


@dataclass(frozen=True, slots=True)
class Block:
    """One measurement: configuration and load by their places, in which round.  `seed` is of what it sends:
    the same for all configurations of a round and load, so that they meet the same arrivals (common random numbers),
    and no other round, load or sweep seed has it.
    """

    round: int
    configuration: int
    load: int
    seed: int

    @property
    def name(self) -> str:
        """Of its run folder."""
        return f"r{self.round + 1}-c{self.configuration + 1}-l{self.load + 1}"


class Sweep(Written):
    """A sweep that holds together; `traffic` is the profile whose kinds it sends."""

    name: Name
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    profile: Annotated[str, Field(min_length=1)] = Field(examples=["traffic_profiles/mixed-lengths.yaml"])
    model: str | None = None
    loads: Many[Load] = Field(examples=["[{users: 4}, {users: 16}]"])
    block_ns: DurationNs = Field(10 * 10**9, alias="block")
    repeats: Annotated[int, Field(ge=1, le=1000)] = 3
    warm_up_ns: DurationNs = Field(30 * 10**9, alias="warm_up")
    best: str = "requests/s"
    objectives: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    base: Changes = UNCHANGED
    configurations: Many[Named] | None = None
    grid: Grid | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        faults: list[tuple[tuple[str | int, ...], str]] = []
        if self.configurations is None and (self.grid is None or self.grid.is_empty):
            raise ValueError("needs configurations, grid or both: what is compared?")
        try:
            self.contest  # noqa: B018 - read for its faults
        except LoadgenError as why:
            faults.append((("best",), str(why)))
        for index, text in enumerate(self.objectives):
            try:
                parse_objective(text)
            except LoadgenError as why:
                faults.append((("objectives", index), str(why)))
        names = [str(load) for load in self.loads]
        faults += [(("loads", i), f"{name} is there twice; keep one") for i, name in enumerate(names)
                   if name in names[:i]]  # fmt: skip
        for index, name in enumerate(given := [one.name for one in self.configurations or ()]):
            if name is not None and name in given[:index]:
                faults.append(
                    (("configurations", index, "name"), f"{name} is there twice; give each its own")
                )
        if faults:
            raise FaultsError(*faults)
        return self

    def with_seed(self, seed: int | None) -> Sweep:
        """The same under another seed, also in its text; itself for None."""
        if seed is None:
            return self
        data = {**read_document(self.text, self.name).data, "name": self.name, "seed": seed}
        return parse_sweep(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), self.name, self.folder)

    @property
    def contest(self) -> Objective:
        """What the best is best in, as an objective that always holds.  Raises LoadgenError."""
        allowed = f"allowed: {', '.join(_RATES)} (the most), latency or service with pNN or mean (the least)"
        for bound in ("> 0", "< 100h"):
            try:
                found = parse_objective(f"{self.best} {bound}")
            except LoadgenError:
                continue
            if found.metric in _RATES or (found.metric in ("latency", "service") and found.quantile != 1.0):
                return found
        raise LoadgenError(f"{show_value(self.best)} is nothing to be best in; {allowed}")

    @property
    def candidates(self) -> tuple[Configuration, ...]:
        """All configurations, each once, in the order of the text: the list, then the grid's combinations."""
        found: dict[str, Configuration] = {}
        for one in self.configurations or ():
            found.setdefault(name := one.name or str(one) or "as published", Configuration(name, self.base.under(one)))  # fmt: skip
        for changes in self.grid.combinations() if self.grid else ():
            found.setdefault(name := str(changes), Configuration(name, self.base.under(changes)))
        return tuple(found.values())

    def axes(self) -> list[tuple[str, list[tuple[str, list[int]]]]]:
        """Settings of the grid with two values or more: name, and each value with the places of its candidates."""
        if self.grid is None:
            return []
        mine = {str(changes) for changes in self.grid.combinations()}
        rows = [(i, one.changes) for i, one in enumerate(self.candidates) if one.name in mine]
        found = []
        for key in Grid.model_fields:
            values = () if key == "set" else getattr(self.grid, key) or ()
            told = [(shown_value(key, v), [i for i, c in rows if getattr(c, key) == v]) for v in values]
            found.append((name_of(Grid, key), told))
        for path, values in self.grid.set.items():
            found.append(
                (path, [(show_value(v), [i for i, c in rows if c.set.get(path) == v]) for v in values])
            )
        return [(name, told) for name, told in found if sum(bool(places) for _, places in told) > 1]

    def blocks(self) -> tuple[Block, ...]:
        """The order of the experiment.  Each round visits every configuration once, in an order of its own,
        and at each visit every load, shuffled too: what drifts meets all alike.
        """
        rng = np.random.default_rng([self.seed, 0x5EE9])
        found = []
        for number in range(self.repeats):
            for configuration in rng.permutation(len(self.candidates)).tolist():
                loads = rng.permutation(len(self.loads)).tolist()
                found += [Block(number, configuration, load, self._seed_of(number, load)) for load in loads]
        return tuple(found)

    @property
    def warm_seed(self) -> int:
        """Of what warming sends: no block's, so that no cache knows a block's inputs."""
        return _derived(self.seed, _WARM)

    def _seed_of(self, number: int, load: int) -> int:
        return _derived(self.seed, _BLOCK, number, load)

    def block_text(self, traffic: TrafficProfile, load: Load) -> str:
        """The profile of one block: the kinds of `traffic` under one load, after a warm-up at that load."""
        warm_ns = max(_LEAST_WARM_UP_NS, round(self.block_ns * _WARM_UP_SHARE))
        phases: list[dict[str, Any]]
        if load.users is not None:
            users: dict[str, Any] = {"users": load.users, "think": f"{load.think_ns}ns"}
            requests = {"users": load.users, "requests": _REQUESTS_A_USER * load.users}
            phases = [{"closed": requests}, {"closed": {**users, "duration": f"{self.block_ns}ns"}}]
        else:
            law = (load.arrivals or Arrivals.model_validate("poisson")).model_dump(exclude_none=True)
            phases = [{"open": {"arrivals": law, "rate": [{"duration": f"{ns}ns", "at": f"{load.rate_per_s!r}/s"}]}}
                      for ns in (warm_ns, self.block_ns)]  # fmt: skip
        return with_phases(
            traffic, [{"name": "warm-up", "warmup": True, **phases[0]}, {"name": str(load), **phases[1]}],
            objectives=list(self.objectives),
        )  # fmt: skip

    def warm_text(self, traffic: TrafficProfile, window_ns: int) -> str:
        """One window of warming: as many users as the busiest load has."""
        users = max((load.users or 0 for load in self.loads), default=0) or 8
        closed = {"users": users, "duration": f"{window_ns}ns"}
        return with_phases(traffic, [{"name": "window", "closed": closed}])

    def traffic(self) -> TrafficProfile:
        """The profile it names.  Raises ProfileError."""
        path = self.folder / self.profile
        return parse_profile(read_text(path), str(path), path.parent)

    def subject(self, traffic: TrafficProfile) -> str:
        """The model whose configuration changes.  Raises LoadgenError unless the profile sends to it."""
        models = sorted({kind.model for kind in traffic.kinds.values() if kind.is_kserve})
        if self.model is None and len(models) == 1:
            return models[0]
        if self.model in models:
            return self.model
        said = "names no model" if self.model is None else f"model {self.model!r} is not in the profile"
        raise LoadgenError(
            f"sweep {self.name}: {said}; {self.profile} sends to: {', '.join(models) or 'none'}"
        )


def _derived(*entropy: int) -> int:
    """A seed of 53 bits: whole in every reader of JSON."""
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(11))


def with_phases(traffic: TrafficProfile, phases: list[Any], **more: Any) -> str:
    """The text of a profile with other phases and keys: its kinds under another load."""
    data = read_document(traffic.text, traffic.name).data
    kept = {
        key: value for key, value in data.items() if key not in ("phases", "objectives", "target", "seed")
    }
    text: str = yaml.safe_dump({**kept, "phases": phases, **more}, sort_keys=False, allow_unicode=True)
    return text


def parse_sweep(text: str, name: str, folder: Path = Path()) -> Sweep:
    """Reads a sweep from its text; `name` stands in front of every message.  Raises ProfileError."""
    document = read_document(text, name, "a sweep needs profile, loads, and grid or configurations")
    data = document.data
    if isinstance(data, dict) and "name" not in data:
        data = {"name": Path(name).stem or "sweep", **data}
    try:
        sweep = Sweep.model_validate(data)
    except ValidationError as error:
        raise ProfileError(*problems(error, Sweep, document, name)) from None
    sweep._text, sweep._folder = text, folder.resolve()  # noqa: SLF001 - known only after reading
    count = len(sweep.candidates) * len(sweep.loads) * sweep.repeats
    if count > MOST_BLOCKS:
        raise ProfileError(
            f"{name}: {count:,} blocks; allowed: {MOST_BLOCKS:,}; drop values of the grid or repeats"
        )
    return sweep


def parse_changes(text: str) -> Changes:
    """One configuration of `configurations`, e.g. `{delay: 5ms, preferred: [4, 8]}`.  Raises ProfileError."""
    name = f"configuration {text!r}"
    document = read_document(text, name, "write {} for the model's own")
    try:
        return Changes.model_validate(document.data)
    except ValidationError as error:
        raise ProfileError(*problems(error, Changes, document, name)) from None


def load_sweep(path: Path) -> Sweep:
    """Reads a sweep from a file.  Raises ProfileError, one line a problem."""
    return parse_sweep(read_text(path, "sweep"), str(path), path.parent)
