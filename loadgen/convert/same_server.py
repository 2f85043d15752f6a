"""Whether an engine that was built here will load in the server: versions and GPUs are compared, never assumed.

It must not build anything, and knows TensorRT only by its numbers.
"""

import re

from loadgen.convert.serve_options import Flavour
from loadgen.convert.tensorrt import RTX, Built, TensorRTError, numbers

_PARTS = 3  # major, minor, patch decide; what follows them is the build


def require_loadable(
    kind: str, version: str, server_version: str | None, *, version_compatible: bool = False
) -> None:
    """Raises TensorRTError unless the server's tensorrt_plan backend loads engines of this TensorRT.

    `server_version` None: it is not known, which is no reason to hope.
    """
    own = f"engines are built here with TensorRT{' for RTX' if kind == RTX else ''} {version}"
    if kind == RTX:
        raise TensorRTError(
            f"{own}, and Triton's {Flavour.TENSORRT} does not load those; convert where the server's own TensorRT is installed"
        )
    if server_version is None:
        raise TensorRTError(
            f"{own}; which one does the server have? It loads no other: give --server-tensorrt, e.g. {version}"
        )
    require_version(server_version, version)
    mine, theirs = numbers(version)[:_PARTS], numbers(server_version)[:_PARTS]
    fits = mine[0] == theirs[0] and mine <= theirs if version_compatible else mine == theirs
    if not fits:
        raise TensorRTError(
            f"{own}, the server has {server_version} and would not load them; convert where that version is installed"
        )


def require_version(text: str, such: str = "10.13.2") -> None:
    """Raises TensorRTError for a text that names no TensorRT; `such` is one that does."""
    if re.fullmatch(r"\d+\.\d+\.\d+(\D.*)?", text) is None:
        raise TensorRTError(f"--server-tensorrt {text}: three numbers are needed, e.g. {such}")


def require_compute(text: str) -> None:
    """Raises TensorRTError for a text that is no compute capability."""
    if re.fullmatch(r"\d+\.\d", text) is None:
        raise TensorRTError(f"--server-compute {text}: a compute capability is two numbers, e.g. 9.0")


def require_same_gpu(built: Built, server_compute: str | None) -> None:
    """Raises TensorRTError if the server's GPU has another compute capability; None: it is this machine's."""
    if server_compute is not None and built.compute != server_compute:
        raise TensorRTError(
            f"the engine is for compute capability {built.compute} ({built.gpu}), the server's GPU has "
            f"{server_compute}; convert on a GPU of that kind"
        )
