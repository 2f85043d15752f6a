"""How many bytes a request's outputs will have, from what the model tells of their shapes.

It must not know where the bytes go.
"""

import math
from collections.abc import Mapping

import numpy as np

from loadgen.records import AnyRank, ModelFacts, TensorSpec
from loadgen.traffic.words import near
from loadgen.workload.fit import DTYPES, FitError


def declared_outputs(facts: ModelFacts, items: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Datatype and full shape of each output of a request of `items` rows; -1 where the model leaves it open.

    Where the server has no configuration to read, a leading -1 stays open and the rank is not held to: metadata
    of other servers than Triton may say [-1] of what is answered as [1, 2].
    """
    if facts.max_batch_size is None:
        return {spec.name: (spec.datatype, AnyRank(spec.shape)) for spec in facts.outputs}
    batch = (items,) if facts.max_batch_size else ()
    return {spec.name: (spec.datatype, (*batch, *spec.shape)) for spec in facts.outputs}


def output_bytes(
    kind: str, facts: ModelFacts, length: int | None, items: int, given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Bytes by output; `given` names some and their bytes, else the model's shapes tell.

    A free dimension has the request's length.  Raises FitError for what nobody tells.
    """
    where = f"kind {kind!r}, model {facts.name!r}"
    if given is not None:
        known = [spec.name for spec in facts.outputs]
        for name in given:
            if known and name not in known:
                raise FitError(f"{where}: no output {name!r}{near(name, known)}; allowed: {', '.join(known)}")
        return dict(given)
    if not facts.outputs:
        raise FitError(
            f"{where}: the server tells no outputs of it; write shared_memory: {{outputs: {{NAME: 64KiB}}}}"
        )
    return {spec.name: _bytes(spec, facts, length, items, where) for spec in facts.outputs}


def _bytes(spec: TensorSpec, facts: ModelFacts, length: int | None, items: int, where: str) -> int:
    shape = spec.shape
    if facts.max_batch_size:
        shape = (items, *shape)
    elif facts.max_batch_size is None and shape[:1] == (-1,):  # a full shape: the batch axis is in it
        shape = (items, *shape[1:])
    free = shape.count(-1)
    if spec.datatype in DTYPES and (free == 0 or (free == 1 and length is not None)):
        values = math.prod(length if dim == -1 and length is not None else dim for dim in shape)
        return values * np.dtype(DTYPES[spec.datatype]).itemsize
    told = ", ".join(str(dim) for dim in spec.shape)
    raise FitError(
        f"{where}: the bytes of output {spec.name!r} ({spec.datatype} [{told}]) cannot be known; write "
        f"shared_memory: {{outputs: {{{spec.name}: 64KiB}}}}, the most that it can have"
    )
