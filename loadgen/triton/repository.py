"""A model repository as it lies on the disk: its models, their versions, and what would keep them from loading.

Nothing is written and no server is asked.  It must not know how models are made.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.records import LoadgenError
from loadgen.triton.config import ModelConfig, Specific
from loadgen.triton.config_check import FILES, Finding, backend_of, check, model_file
from loadgen.triton.pbtxt import ConfigError, parse

CONFIG = "config.pbtxt"


class RepositoryError(LoadgenError):
    """A path that is no repository, model or config.pbtxt."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model folder.  `config` is None when there is no config.pbtxt or it cannot be read."""

    name: str
    folder: Path
    config: ModelConfig | None
    versions: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> bool:
        """Whether a server would not load it."""
        return any(finding.refused for finding in self.findings)


def read_repository(path: Path) -> list[StoredModel]:
    """The models of a repository, of one model's folder, or the one configuration of a config.pbtxt.

    Raises RepositoryError if the path is none of them.
    """
    if path.is_file():
        return [_alone(path)]
    if not path.is_dir():
        raise RepositoryError(f"{path}: {'cannot be read' if path.exists() else 'no such file or folder'}")
    if (path / CONFIG).is_file() or _versions(path):
        return _with_ensembles([read_model(path)], alone=True)
    folders = [f for f in sorted(path.iterdir()) if f.is_dir() and not f.name.startswith(".")]
    models = [f for f in folders if (f / CONFIG).is_file() or _versions(f)]
    if not models:
        raise RepositoryError(
            f"{path} holds no model: no folder in it has a config.pbtxt or a numbered version"
        )
    return _with_ensembles([read_model(folder) for folder in models], alone=False)


def read_model(folder: Path) -> StoredModel:
    """One model folder with everything found about it."""
    name, versions = folder.resolve().name, tuple(_versions(folder))
    findings: list[Finding] = []
    config = None
    file = folder / CONFIG
    if file.is_file():
        config, findings = _read(file)
    else:
        findings.append(
            Finding(False, CONFIG, "is not there: the server makes up its own, batching off or on")
        )
    if config is not None:
        if config.name and config.name != name:
            findings.append(Finding(True, "name", f"{config.name!r} in a folder called {name!r}"))
        findings += check(config)
        findings += _files(config, folder, versions)
    return StoredModel(name, folder, config, versions, tuple(findings))


def read_config(path: Path) -> ModelConfig:
    """The configuration of a config.pbtxt, or of a model's folder; without a name it has its folder's, as in Triton.

    Raises RepositoryError with the line and column of what cannot be read.
    """
    file = path / CONFIG if path.is_dir() else path
    if not file.exists():
        raise RepositoryError(f"{file}: no such file; give a {CONFIG} or a model's folder")
    config, findings = _read(file)
    if config is None:
        raise RepositoryError(f"{file.parent}: {findings[0].text}")
    return config if config.name else replace(config, name=file.resolve().parent.name)


def _alone(file: Path) -> StoredModel:
    config, findings = _read(file)
    if config is not None:
        findings += check(config)
    name = config.name if config is not None and config.name else file.resolve().parent.name
    return StoredModel(name, file.parent, config, (), tuple(findings))


def _read(file: Path) -> tuple[ModelConfig | None, list[Finding]]:
    try:
        return parse(file.read_text(encoding="utf-8"), file.name), []
    except ConfigError as why:
        return None, [Finding(True, CONFIG, str(why))]
    except UnicodeDecodeError as why:
        return None, [Finding(True, CONFIG, f"{file.name} is no UTF-8 text: byte {why.start}")]
    except OSError as why:
        reason = why.strerror or errno.errorcode.get(why.errno or 0, "cannot be read")
        return None, [Finding(True, CONFIG, f"{file.name} cannot be read: {reason}")]


def _versions(folder: Path) -> list[int]:
    """Only names of digits that do not begin with 0: the server ignores others."""
    try:
        names = [f.name for f in folder.iterdir() if f.is_dir()]
    except OSError:
        return []
    return sorted(int(n) for n in names if n.isdecimal() and n.isascii() and not n.startswith("0"))


def _files(config: ModelConfig, folder: Path, versions: Sequence[int]) -> Iterator[Finding]:
    if not versions:
        yield Finding(True, "versions", "no folder named 1 or another whole number")
        return
    wanted = list(versions)
    policy = config.version_policy
    if policy is not None and policy.specific is not None:
        yield from _specific(policy.specific, versions)
        wanted = [v for v in policy.specific.versions if v in versions]
    elif policy is None or policy.all is None:
        latest = policy.latest.num_versions if policy is not None and policy.latest is not None else 1
        wanted = wanted[-max(latest, 1) :]
    yield from _contents(config, folder, wanted)


def _contents(config: ModelConfig, folder: Path, wanted: Sequence[int]) -> Iterator[Finding]:
    """What the versions that would be served hold, and the warm-up's files."""
    file = model_file(config)
    if not config.platform and not config.backend:
        there = {f.name for v in wanted for f in (folder / str(v)).iterdir()}
        if not there & set(FILES.values()):
            yield Finding(True, "backend", "neither backend nor platform, nor a file that tells one")
    for version in wanted if file else ():
        if not (folder / str(version) / file).exists():
            yield Finding(
                True, f"version {version}", f"{file} is missing, which {backend_of(config) or 'it'} loads"
            )
    for warmup in config.model_warmup:
        for name, given in warmup.inputs.items():
            if given.input_data_file and not (folder / "warmup" / given.input_data_file).is_file():
                text = f"{name}: warmup/{given.input_data_file} is missing"
                yield Finding(True, f"model_warmup {warmup.name!r}", text)


def _specific(policy: Specific, versions: Sequence[int]) -> Iterator[Finding]:
    missing = [v for v in policy.versions if v not in versions]
    if missing:
        there = ", ".join(map(str, versions))
        none = len(missing) == len(
            policy.versions
        )  # with one of them there, the server goes on without the rest
        yield Finding(none, "version_policy", f"version {missing[0]} is not there; there are {there}")


def _with_ensembles(models: list[StoredModel], *, alone: bool) -> list[StoredModel]:
    """Ensembles looked at once all models are known; of a model that is read alone its steps are not."""
    by_name = {model.name: model for model in models}
    done = []
    for model in models:
        found = [] if alone else list(_steps(model, by_name))
        done.append(
            StoredModel(model.name, model.folder, model.config, model.versions, (*model.findings, *found))
        )
    return done


def _steps(model: StoredModel, by_name: dict[str, StoredModel]) -> Iterator[Finding]:
    ensemble = model.config.ensemble_scheduling if model.config is not None else None
    for i, step in enumerate(ensemble.step if ensemble is not None else ()):
        where = f"ensemble_scheduling.step[{i}]"
        other = by_name.get(step.model_name)
        if other is None:
            yield Finding(True, where, f"model {step.model_name!r} is not in the repository")
            continue
        if step.model_version > 0 and step.model_version not in other.versions:
            yield Finding(True, where, f"{step.model_name!r} has no version {step.model_version}")
        if other.config is None:
            continue
        for what, used, there in (
            ("input", step.input_map, other.config.input),
            ("output", step.output_map, other.config.output),
        ):
            names = {tensor.name for tensor in there}
            for name in sorted(set(used) - names) if names else ():
                yield Finding(True, where, f"{step.model_name!r} has no {what} {name!r}")
