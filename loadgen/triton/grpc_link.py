"""The control plane's questions over gRPC, and protobuf messages in the JSON form of the HTTP side.

It must not know what the answers mean, nor repeat or wait for anything.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from loadgen.connect.channel import OfficialChannel, lost_connection
from loadgen.connect.options import ConnectOptions
from loadgen.target import Target
from loadgen.triton.links import ServerSaidError, no_agreement, no_server

_NO_READINESS = ("UNIMPLEMENTED", "UNAUTHENTICATED", "PERMISSION_DENIED")  # says nothing of the model


def _is_told(record: logging.LogRecord) -> bool:
    """Ctrl-C closes a loop with a question under way; grpcio then tells the next loop's log that the first is closed."""
    why = record.exc_info[1] if record.exc_info else None
    return not (isinstance(why, RuntimeError) and "PollerCompletionQueue" in record.getMessage())


logging.getLogger("asyncio").addFilter(_is_told)


class GrpcLink:
    """One channel, straight to the target."""

    def __init__(self, target: Target, options: ConnectOptions, *, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._metadata = options.grpcio_metadata()
        self._channel = OfficialChannel(target, options)
        self._stub: Any = None

    async def live(self) -> bool:
        return bool((await self._call("ServerLive")).live)

    async def ready(self) -> bool:
        return bool((await self._call("ServerReady")).ready)

    async def model_ready(self, model: str, version: str) -> bool:
        try:
            return bool((await self._call("ModelReady", name=model, version=version)).ready)
        except ServerSaidError as why:  # MLServer answers NOT_FOUND where Triton says "not ready"
            if why.status in _NO_READINESS:
                raise
            return False

    async def metadata(self) -> dict[str, Any]:
        return plain(await self._call("ServerMetadata"))

    async def model_metadata(self, model: str, version: str) -> dict[str, Any]:
        return plain(await self._call("ModelMetadata", name=model, version=version))

    async def config(self, model: str, version: str) -> dict[str, Any]:
        return plain((await self._call("ModelConfig", name=model, version=version)).config)

    async def statistics(self, model: str, version: str, timeout_s: float | None) -> dict[str, Any]:
        return plain(await self._call("ModelStatistics", timeout_s, name=model, version=version))

    async def index(self) -> list[dict[str, Any]]:
        rows = plain(await self._call("RepositoryIndex"))["models"]
        for row in rows:
            row["state"] = row["state"].removeprefix("State.")  # as MLServer writes READY
        return [{key: value for key, value in row.items() if value} for row in rows]

    async def load(self, model: str, config: str | None, timeout_s: float) -> None:
        parameters = {} if config is None else {"config": {"string_param": config}}
        await self._call("RepositoryModelLoad", timeout_s, model_name=model, parameters=parameters)

    async def unload(self, model: str) -> None:
        await self._call("RepositoryModelUnload", model_name=model)

    async def trace(self, model: str, settings: dict[str, Any] | None) -> dict[str, Any]:
        """See HttpLink."""
        told: dict[str, Any] = {
            key: {"value": [value] if isinstance(value, str) else value or []}
            for key, value in (settings or {}).items()
        }
        rows = plain(await self._call("TraceSetting", model_name=model, settings=told))["settings"]
        return {
            key: row["value"] if key == "trace_level" else "".join(row["value"]) for key, row in rows.items()
        }

    async def memory(self) -> list[str]:
        """See HttpLink."""
        return list(plain(await self._call("SystemSharedMemoryStatus"))["regions"])

    async def register_memory(self, name: str, key: str, size: int) -> None:
        await self._call("SystemSharedMemoryRegister", name=name, key=key, byte_size=size)

    async def unregister_memory(self, name: str) -> None:
        await self._call("SystemSharedMemoryUnregister", name=name)

    async def close(self) -> None:
        await self._channel.close()
        self._stub = None

    async def _call(self, name: str, timeout_s: float | None = None, /, **fields: Any) -> Any:
        import grpc
        from tritonclient.grpc import service_pb2

        stub = await self._open()
        request = getattr(service_pb2, f"{name}Request")()
        for key, value in fields.items():
            if isinstance(value, Mapping):
                for inner, parameter in value.items():
                    entry = getattr(request, key)[inner]
                    if "string_param" in parameter:
                        entry.string_param = parameter["string_param"]
                    else:
                        entry.value.extend(parameter["value"])
            else:
                setattr(request, key, value)
        limit_s = timeout_s or self._timeout_s
        try:
            return await getattr(stub, name)(request, timeout=limit_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as why:
            code, details = why.code(), why.details() or ""
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise no_server(self._target, f"no answer within {limit_s:g} s") from None
            if code is grpc.StatusCode.UNAVAILABLE and lost_connection(details):
                words, lasts = await self._channel.failure(details)
                raise (no_agreement if lasts else no_server)(self._target, words) from None
            absent = code is grpc.StatusCode.UNIMPLEMENTED
            raise ServerSaidError(code.name, details, absent=absent) from None
        except (asyncio.InvalidStateError, grpc.aio.UsageError) as why:
            raise no_server(self._target, str(why)) from None

    async def _open(self) -> Any:
        if self._stub is None:
            from tritonclient.grpc import service_pb2_grpc

            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(await self._channel.open())
        return self._stub


def plain(message: Any) -> dict[str, Any]:
    """The JSON form of a protobuf message as Triton's HTTP side writes it: every plain field is there,
    64-bit ints stay ints, enums are names, messages that were not set are left out.
    """
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            result[field.name] = {str(key): _value(inner, item) for key, item in value.items()}
        elif _repeated(field):
            result[field.name] = [_value(field, item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            continue
        else:
            result[field.name] = _value(field, value)
    return result


def _repeated(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)  # protobuf 6 and later; before, a label
    return bool(field.label == field.LABEL_REPEATED if known is None else known)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
