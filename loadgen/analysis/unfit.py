"""What is legal in a model's configuration but does not go with a traffic profile: findings before anything is sent.

Each rule looks at one thing and says what happens, why, and the experiment that shows it.  The models that an
ensemble is made of are looked at with the requests that the ensemble gets, whose rows pass through its steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loadgen.triton.config import QueuePolicy
from loadgen.triton.config_enums import GroupKind
from loadgen.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loadgen.planstory import PhaseStory, Spread
    from loadgen.traffic.profile import Kind, TrafficProfile
    from loadgen.triton.config import DynamicBatching, ModelConfig

_BUDGET = 0.5  # of what an objective allows, for waiting on purpose
_IDS = re.compile(r"(^|_)ids?$|token", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Finding:
    """`text`: what happens and why; `show`: a command line whose outcome shows it; `model`: whose configuration."""

    code: str
    text: str
    show: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    config: ModelConfig
    profile: TrafficProfile
    stories: Sequence[PhaseStory]
    cores: int
    engine_rows: tuple[int, int] | None  # fewest and most of a TensorRT engine
    where: str  # how a person names the profile on a command line
    asked: str  # the model whose requests it gets: its own name, or an ensemble's that it is a step of

    @property
    def is_step(self) -> bool:
        return self.asked != self.config.name

    @property
    def batcher(self) -> DynamicBatching | None:
        """The dynamic batcher's part, if there is one that can batch."""
        return self.config.dynamic_batching if self.config.max_batch_size > 0 else None

    @property
    def kinds(self) -> list[Kind]:
        """Those that send tensors to this model."""
        named = [k for k in self.profile.kinds.values() if k.is_kserve]
        return [k for k in named if k.model == self.asked or not self.asked]

    @property
    def explained(self) -> str:
        return f"loadgen run {self.where} --trace-server --out lint-run && loadgen explain lint-run"

    def lengths(self, kind: Kind) -> list[Spread]:
        """Of the measured phases."""
        told = [s.kinds[kind.name].length for s in self.stories if s.measured and kind.name in s.kinds]
        return [one for one in told if one is not None]


def unfit(
    config: ModelConfig,
    profile: TrafficProfile,
    stories: Sequence[PhaseStory],
    *,
    cores: int,
    where: str,
    engine_rows: tuple[int, int] | None = None,
    step_of: str | None = None,
) -> list[Finding]:
    """Findings, by rule; `cores` of the server, `where` names the profile's file.

    `engine_rows`: the fewest and most rows that a TensorRT engine's optimization profiles take; None: not known.
    `step_of`: the ensemble that is asked, when the model is one of those it is made of.
    """
    seen = _Seen(config, profile, stories, cores, engine_rows, where, step_of or config.name)
    rules = (_no_batcher, _preferred_cap, _override_ignored, _prefetch_off, _delay_over_budget, _lengths_apart,
             _engine_smaller, _warm_up_ids, _more_than_cores, _rows_do_not_fit)  # fmt: skip
    return [replace(finding, model=config.name) for rule in rules for finding in rule(seen)]


def _no_batcher(seen: _Seen) -> Iterator[Finding]:
    config = seen.config
    scheduled = (config.dynamic_batching, config.sequence_batching, config.ensemble_scheduling)
    if config.dynamic_batching is not None and config.max_batch_size == 0:
        yield Finding(
            "batcher-without-batches",
            "dynamic_batching is there, but max_batch_size is 0: each request is executed alone",
            seen.explained,
        )
    elif config.max_batch_size > 1 and not any(one is not None for one in scheduled):
        yield Finding(
            "no-dynamic-batching",
            f"max_batch_size is {config.max_batch_size}, but there is no dynamic_batching: requests are never merged "
            "(unless the server completes the configuration itself)",
            seen.explained,
        )


def _preferred_cap(seen: _Seen) -> Iterator[Finding]:
    batcher, most = seen.batcher, seen.config.max_batch_size
    if batcher is None:
        return
    below = sorted(n for n in batcher.preferred_batch_size if n < most)
    if not below or batcher.max_queue_delay_microseconds:
        return
    top = max(batcher.preferred_batch_size)
    cap = f"{top} is a hard cap" if top < most else f"the first batch that waits is sealed at {below[0]}"
    yield Finding(
        "preferred-is-a-cap",
        f"preferred_batch_size {sorted(batcher.preferred_batch_size)} at max_queue_delay_microseconds 0: a batch is sealed at the "
        f"preferred size that it reaches, so {cap} although max_batch_size is {most}; take preferred_batch_size out",
        seen.explained,
    )


def _policies(batcher: DynamicBatching) -> list[tuple[str, QueuePolicy]]:
    own = [("default_queue_policy", batcher.default_queue_policy or QueuePolicy())]
    return own + [
        (f"priority_queue_policy {key}", one) for key, one in sorted(batcher.priority_queue_policy.items())
    ]


def _override_ignored(seen: _Seen) -> Iterator[Finding]:
    if seen.batcher is None:
        return
    asking = [k.name for k in seen.kinds if k.server_timeout_ns is not None]
    for name, policy in _policies(seen.batcher):
        if policy.allow_timeout_override and not policy.default_timeout_microseconds:
            yield Finding(
                "override-ignored",
                f"{name}: allow_timeout_override without default_timeout_microseconds does nothing but switch prefetch off: a request may "
                f"only lower a default that is there{_of(asking)}; set default_timeout_microseconds",
                f"loadgen run {seen.where}  # with server_timeout: 1ms on a kind: none is rejected",
            )
        elif asking and not policy.allow_timeout_override and name == "default_queue_policy":
            yield Finding(
                "override-ignored",
                f"the profile gives requests a server_timeout{_of(asking)}, which {name} does not heed: set allow_timeout_override and "
                "default_timeout_microseconds",
                f"loadgen run {seen.where}  # with server_timeout: 1ms: none is rejected",
            )
    by_priority = [k.name for k in seen.kinds if k.priority]
    if by_priority and not seen.batcher.priority_levels:
        yield Finding(
            "override-ignored",
            f"the profile gives requests a priority{_of(by_priority)}, but priority_levels is 0: all are alike",
            seen.explained,
        )


def _of(names: list[str]) -> str:
    return f" (kind {', '.join(names)})" if names else ""


def _prefetch_off(seen: _Seen) -> Iterator[Finding]:
    batcher = seen.batcher
    if batcher is None:
        return
    policy = batcher.default_queue_policy or QueuePolicy()
    causes = [f"priority_levels {batcher.priority_levels}"] if batcher.priority_levels else []
    causes += [
        f"{key} {getattr(policy, key)}".lower()
        for key in ("default_timeout_microseconds", "allow_timeout_override", "max_queue_size")
        if getattr(policy, key)
    ]
    if causes:
        yield Finding(
            "prefetch-off",
            f"{', '.join(causes)}: the batcher prepares no batch ahead and can miss the signal of an instance that becomes free; "
            "without further arrivals it then sleeps for up to 500 ms with requests pending (closed loops and bursts; steady "
            "arrivals hide it)",
            f"loadgen run {seen.where} --trace-server  # closed: {{users: 32, duration: 10s}}: doubt idle_while_pending",
        )


def _delay_over_budget(seen: _Seen) -> Iterator[Finding]:
    if seen.batcher is None:
        return
    delay = 1000 * seen.batcher.max_queue_delay_microseconds
    mine = {k.name for k in seen.kinds}
    for objective in seen.profile.objectives:
        bounds = objective.metric in ("latency", "service") and objective.op.startswith("<")
        if not (bounds and (objective.kind is None or objective.kind in mine)):
            continue
        if delay > _BUDGET * objective.threshold:
            leaves = objective.threshold - delay
            left = f"{show_ns(leaves)} for everything else" if leaves > 0 else "nothing"
            yield Finding(
                "delay-over-budget",
                f'max_queue_delay_microseconds {delay // 1000} ({show_ns(delay)}) leaves {left} of "{objective.text}": idle instances do not '
                "cut the delay short, so at light load every request waits for all of it",
                f"loadgen check {seen.where}  # at a tenth of the rate: latency is the delay and the service time",
            )


def _lengths_apart(seen: _Seen) -> Iterator[Finding]:
    if seen.batcher is None:
        return
    config = seen.config
    if seen.is_step:
        return  # what its inputs look like is made by the steps before it
    free = [t.name for t in config.input if any(d < 0 for d in t.dims) and not t.allow_ragged_batch]
    spreads = [(k, one) for k in seen.kinds for one in seen.lengths(k)]
    if not free or not spreads:
        return
    low, high = min(one.min for _, one in spreads), max(one.max for _, one in spreads)
    if low == high:
        return
    common = {(k.name, one.p50 == one.min == one.max) for k, one in spreads}
    fixed = "each kind has one length, but they differ" if all(same for _, same in common) else "lengths vary"
    yield Finding(
        "lengths-apart",
        f"{fixed} ({low} to {high} tokens), and input {', '.join(free)} has no allow_ragged_batch: only neighbours of the same length share a "
        "batch, the first of another length closes it; pad to a few lengths in the client, or allow_ragged_batch: true where the model pads",
        seen.explained,
    )


def _engine_smaller(seen: _Seen) -> Iterator[Finding]:
    config, rows = seen.config, seen.engine_rows
    if rows is None or not config.max_batch_size:
        return
    low, high = rows
    if high < config.max_batch_size:
        yield Finding(
            "engine-smaller",
            f"max_batch_size is {config.max_batch_size}, but the engine's optimization profiles end at {high} rows: the model does not load, or "
            f"larger batches fail; set max_batch_size: {high}, or build the engine for more",
            f"loadgen run {seen.where}  # closed: {{users: {2 * config.max_batch_size}, duration: 10s}}: errors of the engine",
        )
    smallest = min((k.batch for k in seen.kinds), default=low)
    if low > smallest:
        yield Finding(
            "engine-begins-above",
            f"the engine's optimization profiles begin at {low} rows, a request has {smallest}: whenever fewer wait than that the batch "
            "fails or is padded; build the engine from 1 row on",
            f"loadgen run {seen.where}  # closed: {{users: 1, requests: 10}}",
        )


def _warm_up_ids(seen: _Seen) -> Iterator[Finding]:
    types = {t.name: t for t in seen.config.input}
    for warm in seen.config.model_warmup:
        random = [
            name
            for name, one in warm.inputs.items()
            if one.random_data and _IDS.search(name) and (name not in types or types[name].data_type.whole)
        ]
        if random:
            yield Finding(
                "warm-up-ids",
                f"model_warmup {warm.name!r}: random_data fills {', '.join(random)} with raw random bytes, far outside any vocabulary: the look-up "
                "fails or reads astray, and a failed warm-up fails the load; use zero_data or input_data_file",
                f"loadgen serve start --model {seen.config.name or 'MODEL'}; loadgen serve logs",
            )
        if not warm.batch_size:
            yield Finding(
                "warm-up-skipped",
                f"model_warmup {warm.name!r}: batch_size is 0, so it is skipped; batch_size: 1 or more",
                f"loadgen serve logs  # no warm-up of {warm.name!r}",
            )


def _more_than_cores(seen: _Seen) -> Iterator[Finding]:
    on_cpu = sum(max(1, g.count) for g in seen.config.instance_group if g.kind is GroupKind.KIND_CPU)
    if on_cpu > seen.cores:
        yield Finding(
            "more-instances-than-cores",
            f"{on_cpu} CPU instances on {seen.cores} cores: beyond one a core (and its threads) they take turns, so each batch takes longer and "
            "more of them are small",
            f"loadgen run {seen.where}  # with count: {seen.cores} and count: {on_cpu}: compare requests/s and P99",
        )


def _rows_do_not_fit(seen: _Seen) -> Iterator[Finding]:
    most = seen.config.max_batch_size
    for kind in seen.kinds:
        if most and kind.batch > most:
            yield Finding(
                "request-too-large",
                f"kind {kind.name} sends {kind.batch} rows, max_batch_size is {most}: the server refuses it",
                f"loadgen run {seen.where}  # INVALID_ARGUMENT",
            )
        elif seen.batcher is not None and kind.batch > 1 and most % kind.batch and most < 2 * kind.batch:
            yield Finding(
                "requests-do-not-pair",
                f"kind {kind.name} sends {kind.batch} rows of at most {most}: no two fit together and a request is never split, so batches stay "
                f"at {kind.batch}; max_batch_size {2 * kind.batch} would hold two",
                seen.explained,
            )
