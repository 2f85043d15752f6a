"""As much of TensorRT's Python API as loadgen calls, scripted: what a GPU machine has and this one lacks.

`module("10.13.2.6")` is the package as that version shows it; `calls` records what was asked of it.
"""

from __future__ import annotations

import ctypes
import enum
import math
from types import SimpleNamespace

DataType = enum.Enum("DataType", "FLOAT HALF BF16 INT64 INT32 INT8 UINT8 BOOL FP8")
DAMAGED = b"a damaged cache"
TensorIOMode = enum.Enum("TensorIOMode", "NONE INPUT OUTPUT")


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


def module(version, *, engine=None, parser_errors=(), build_error=None):  # noqa: C901 - a package in one place
    """`engine`: {name: (TensorIOMode, DataType, shape)}, what a plan deserialises to; None: it does not."""
    calls = []
    tensors = engine or {
        "x": (TensorIOMode.INPUT, DataType.FLOAT, (-1, 4)),
        "y": (TensorIOMode.OUTPUT, DataType.FLOAT, (-1, 4)),
    }
    by_mode = {mode: [n for n, (m, _, _) in tensors.items() if m is mode] for mode in TensorIOMode}
    profiles = []

    def tensor(name):
        return SimpleNamespace(name=name, dtype=tensors[name][1], shape=tensors[name][2])

    class Network:
        num_inputs, num_outputs = len(by_mode[TensorIOMode.INPUT]), len(by_mode[TensorIOMode.OUTPUT])

        def get_input(self, i):
            return tensor(by_mode[TensorIOMode.INPUT][i])

        def get_output(self, i):
            return tensor(by_mode[TensorIOMode.OUTPUT][i])

    class Profile(dict):
        def set_shape(self, name, *three):
            self[name] = three

    class Config:
        def set_memory_pool_limit(self, _pool, size):
            calls.append(("workspace", size))

        def set_flag(self, flag):
            calls.append(("set", flag))

        def clear_flag(self, flag):
            calls.append(("clear", flag))

        def add_optimization_profile(self, profile):
            profiles.append(profile)

        def create_timing_cache(self, data):
            return None if data == DAMAGED else data

        def set_timing_cache(self, cache, _ignore):
            calls.append(("cache", bytes(cache)))
            return True

        def get_timing_cache(self):
            return SimpleNamespace(serialize=lambda: b"timings")

    class Builder:
        def __init__(self, logger):
            self.logger = logger

        def create_network(self, flags):
            calls.append(("network", flags))
            return Network()

        def create_builder_config(self):
            return Config()

        def create_optimization_profile(self):
            return Profile()

        def build_serialized_network(self, _network, _config):
            if build_error:
                self.logger.log(ILogger.ERROR, build_error)
                return None
            self.logger.log(ILogger.WARNING, "a warning of  the builder")
            return b"a plan"

    class Parser:
        num_errors = len(parser_errors)

        def __init__(self, _network, _logger):
            pass

        def parse_from_file(self, _file):
            return not parser_errors

        def get_error(self, i):
            return parser_errors[i]

    class Logger(ILogger):
        def __init__(self, _severity):
            pass

        def log(self, _severity, _text):
            pass

    class Engine:
        num_io_tensors = len(tensors)

        @property
        def num_optimization_profiles(self):
            return len(profiles)

        def get_tensor_name(self, i):
            return list(tensors)[i]

        def get_tensor_mode(self, name):
            return tensors[name][0]

        def get_tensor_dtype(self, name):
            return tensors[name][1]

        def get_tensor_shape(self, name):
            return tensors[name][2]

        def create_execution_context(self):
            return Context()

        def get_tensor_profile_shape(self, name, i):
            return list(profiles[i][name])

    class Context:
        """Copies the bytes of the first input to the first output: both are of one size."""

        def __init__(self):
            self.shapes, self.places = {}, {}

        def set_optimization_profile_async(self, index, _stream):
            calls.append(("profile", index))

        def set_input_shape(self, name, shape):
            self.shapes[name] = shape

        def get_tensor_shape(self, name):
            return self.shapes[by_mode[TensorIOMode.INPUT][0]]

        def set_tensor_address(self, name, place):
            self.places[name] = place

        def execute_async_v3(self, _stream):
            x, y = by_mode[TensorIOMode.INPUT][0], by_mode[TensorIOMode.OUTPUT][0]
            size = {"INT64": 8, "HALF": 2}.get(tensors[x][1].name, 4)
            ctypes.memmove(self.places[y], self.places[x], math.prod(self.shapes[x]) * size)
            return True

    class Runtime:
        def __init__(self, logger):
            self.logger = logger

        def deserialize_cuda_engine(self, plan):
            if plan != b"a plan":
                self.logger.log(
                    ILogger.ERROR, "The engine plan file is not compatible with this version of TensorRT"
                )
                return None
            return Engine()

    typed = {} if int(version.partition(".")[0]) >= 11 else {"STRONGLY_TYPED": 1}
    return SimpleNamespace(
        __version__=version, calls=calls, ILogger=ILogger, Builder=Builder, OnnxParser=Parser, Runtime=Runtime,
        Logger=Logger,
        DataType=DataType, TensorIOMode=TensorIOMode, MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"),
        BuilderFlag=SimpleNamespace(TF32="tf32", VERSION_COMPATIBLE="compatible"),
        NetworkDefinitionCreationFlag=SimpleNamespace(**typed),
    )  # fmt: skip
