"""The control plane against small servers in this process: what a real Triton will not say on demand."""

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager

import pytest

from loadgen.connect.channel import OfficialChannel, lost_connection
from loadgen.connect.options import ConnectOptions
from loadgen.records import LoadgenError
from loadgen.target import Target, parse_target
from loadgen.triton.control import Control
from loadgen.triton.grpc_link import plain
from loadgen.triton.keeper import born
from loadgen.triton.links import NoServerError

SECOND = 10**9


@pytest.fixture
def unused():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]  # bound, not listening: connections are refused


class Fake:
    """A KServe v2 server over HTTP: `answers` by "METHOD path" as (status, object); 404 for all else."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def __call__(self, request):
        from aiohttp import web

        key = f"{request.method} {request.raw_path}"
        self.asked.append((key, await request.text()))
        answer = self.answers.get(key, (404, {"error": "no such path"}))
        status, body = answer.pop(0) if isinstance(answer, list) else answer
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))

    @asynccontextmanager
    async def control(self, base_path="", **options):
        from aiohttp import web

        server = web.Server(self)
        runner = web.ServerRunner(server)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with Control(Target("http", "127.0.0.1", port, base_path=base_path), **options) as control:
                yield control
        finally:
            await runner.cleanup()


METADATA = {
    "name": "m",
    "versions": ["1"],
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 32]}],
    "outputs": [],
}


def test_nobody_there_is_said_with_the_address_and_what_to_do(unused):
    async def go(url):
        async with Control(parse_target(url)) as control:
            await control.model_facts("m")

    for url in (f"http://127.0.0.1:{unused}", f"grpc://127.0.0.1:{unused}"):
        with pytest.raises(NoServerError) as caught:
            asyncio.run(go(url))
        assert str(caught.value) == (
            f"no server answers at {url}: connection refused; is it running? (loadgen serve start)"
        )
        assert caught.value.exit_code == 2


def test_no_proxy_and_no_netrc_come_between(monkeypatch, unused):
    for variable in ("http_proxy", "HTTP_PROXY", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{unused}")

    async def go():
        async with Fake(**{"GET /v2/health/live": (200, "")}).control() as control:
            assert await control.server_live()

    asyncio.run(go())


def test_the_base_path_is_kept_and_names_are_encoded():
    fake = Fake(**{"GET /base/x/v2/models/a%2Fb%20c/versions/2/ready": (200, "")})

    async def go():
        async with fake.control(base_path="/base/x") as control:
            assert await control.model_ready("a/b c", "2")
            assert not await control.model_ready("a/b c", "3")

    asyncio.run(go())


def test_server_ready_and_model_ready_are_separate_facts():
    fake = Fake(
        **{
            "GET /v2/health/ready": (503, ""),
            "GET /v2/models/m/ready": (200, ""),
            "GET /v2/health/live": (200, ""),
        }
    )

    async def go():
        async with fake.control() as control:
            await control.wait_model_ready("m", timeout_ns=SECOND)
            assert not await control.server_ready()
            assert await control.server_live()

    asyncio.run(go())


def test_waiting_for_the_model_not_for_the_server():
    states = [(400, ""), (400, ""), (200, "")]
    fake = Fake(**{"GET /v2/health/ready": (200, ""), "GET /v2/models/m/ready": states})

    async def go():
        async with fake.control() as control:
            await control.wait_model_ready("m", timeout_ns=10 * SECOND)
            assert states == []

    asyncio.run(go())


def test_a_wait_in_vain_tells_both_states():
    fake = Fake(
        **{
            "GET /v2/health/ready": (200, ""),
            "GET /v2/models/m/ready": (400, ""),
            "POST /v2/repository/index": (200, [{"name": "m", "version": "1", "state": "LOADING"}]),
        }
    )

    async def go():
        async with fake.control() as control:
            await control.wait_model_ready("m", timeout_ns=SECOND // 20)

    with pytest.raises(
        LoadgenError, match=r"after 0.05 s .*'m' is known to .*LOADING.*the server itself is ready"
    ):
        asyncio.run(go())


def test_a_server_without_the_configuration_extension_is_read_from_its_metadata():
    async def go(status):
        fake = Fake(
            **{"GET /v2/models/m": (200, METADATA), "GET /v2/models/m/config": (status, {"error": "no"})}
        )
        async with fake.control() as control:
            return await control.model_facts("m")

    for absent in (404, 405, 501):
        facts = asyncio.run(go(absent))
        assert facts.max_batch_size is None
        assert facts.inputs[0].shape == (1, 32)
    with pytest.raises(LoadgenError, match=r"refused the configuration of 'm': no \(HTTP 500\)"):
        asyncio.run(go(500))


def test_a_server_without_a_repository_or_statistics_is_told_so():
    async def go(ask):
        answers = {"GET /v2": (200, {"name": "f"}), "GET /v2/models/m/ready": (200, "")}
        async with Fake(**answers).control() as control:
            await ask(control)

    with pytest.raises(LoadgenError, match=r"refused model 'q': no such path \(HTTP 404\)"):
        asyncio.run(go(lambda control: control.model_facts("q")))
    with pytest.raises(LoadgenError, match="has no statistics extension"):
        asyncio.run(go(lambda control: control.statistics("m")))


def test_what_is_no_inference_server_is_told():
    async def go():
        async with Fake(**{"GET /v2": (200, "<html>hello</html>")}).control() as control:
            await control.server_metadata()

    with pytest.raises(LoadgenError, match="does not speak KServe v2"):
        asyncio.run(go())


def test_a_configuration_travels_as_a_string_and_the_log_explains_a_poll_failure(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("\"failed to poll model 'm': an old reason\"\n")
    fake = Fake(
        **{
            "POST /v2/repository/models/m/load": [
                (200, ""),
                (500, {"error": "failed to load 'm', failed to poll from model repository"}),
            ],
            "POST /v2/repository/index": (200, [{"name": "m"}]),
        }
    )

    async def go():
        async with fake.control(log=log) as control:
            await control.load("m", {"max_batch_size": 4})
            assert json.loads(fake.asked[0][1]) == {"parameters": {"config": '{"max_batch_size": 4}'}}
            with pytest.raises(LoadgenError, match="only in the server's log"):
                await control.load("m")  # the old reason is not this load's

    asyncio.run(go())


def test_unload_waits_until_it_is_gone():
    rows = [
        (200, [{"name": "m", "version": "1", "state": s}])
        for s in ("READY", "UNLOADING", "UNLOADING", "UNAVAILABLE")
    ]
    fake = Fake(**{"POST /v2/repository/models/m/unload": (200, ""), "POST /v2/repository/index": rows})

    async def go():
        async with fake.control() as control:
            await control.unload("m")
            assert rows == []

    asyncio.run(go())


def test_statistics_of_the_highest_version_as_a_number():
    rows = [{"name": "m", "version": v, "inference_count": int(v)} for v in ("9", "10", "2")]

    async def go():
        async with Fake(**{"GET /v2/models/m/stats": (200, {"model_stats": rows})}).control() as control:
            return await control.statistics("m")

    assert asyncio.run(go())["version"] == "10"


@pytest.mark.parametrize(
    "answer", [{}, {"model_stats": None}, {"model_stats": [1]}, {"model_stats": [{}]}, "text"]
)
def test_an_answer_without_statistics_is_told(answer):
    async def go():
        async with Fake(**{"GET /v2/models/m/stats": (200, answer)}).control() as control:
            return await control.statistics("m")

    with pytest.raises(LoadgenError, match="stat"):
        asyncio.run(go())


def test_counters_are_read_until_they_stand_still():
    rows = [
        (200, {"model_stats": [{"version": "1", "inference_count": n}]}) for n in (3, 4, 4, 6, 6, 6, 6, 9)
    ]

    async def go():
        async with Fake(**{"GET /v2/models/m/stats": rows}).control() as control:
            assert (await control.settled_statistics("m"))["inference_count"] == 6
            assert (await control.settled_statistics("m", settle_ns=0))["inference_count"] == 9

    asyncio.run(go())


def test_a_server_that_hangs_is_given_up():
    async def go(protocol):
        async def hang(reader, writer):
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        target = Target(protocol, "127.0.0.1", server.sockets[0].getsockname()[1])
        async with server, Control(target, timeout_ns=SECOND // 5) as control:
            await control.server_live()

    for protocol in ("http", "grpc"):
        with pytest.raises(NoServerError, match=r"no answer within 0.2 s"):
            asyncio.run(go(protocol))


def test_protobuf_becomes_the_json_form_of_the_http_side():
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelStatisticsResponse()
    row = message.model_stats.add(name="m", inference_count=2**40)
    row.batch_stats.add(batch_size=4).compute_infer.ns = 7
    assert plain(message)["model_stats"][0]["inference_count"] == 2**40
    assert plain(message)["model_stats"][0]["batch_stats"] == [
        {"batch_size": 4, "compute_infer": {"count": 0, "ns": 7}}
    ]
    assert "inference_stats" not in plain(message)["model_stats"][0]

    config = service_pb2.ModelConfigResponse().config
    config.input.add(name="x", data_type=2, dims=[-1])
    config.parameters["k"].string_value = "v"
    shown = plain(config)
    assert shown["input"][0] == {
        "name": "x", "data_type": "TYPE_UINT8", "format": "FORMAT_NONE", "dims": [-1], "is_shape_tensor": False,
        "allow_ragged_batch": False, "optional": False, "is_non_linear_format_io": False,
    }  # fmt: skip
    assert shown["parameters"] == {"k": {"string_value": "v"}}
    assert "dynamic_batching" not in shown


def test_a_path_without_the_api_is_told_with_its_status():
    async def go(ask, base_path):
        async with Fake(**{"GET /v2/health/live": (200, "")}).control(base_path=base_path) as control:
            await ask(control)

    asks = (
        lambda control: control.wait_model_ready("identity", timeout_ns=0),
        lambda control: control.model_facts("identity"),
        lambda control: control.server_metadata(),
        lambda control: control.load("identity"),
    )
    for ask in asks:
        with pytest.raises(LoadgenError) as caught:
            asyncio.run(go(ask, "/some/path"))
        said = str(caught.value)
        assert "has no KServe v2 API at /some/path: GET /some/path/v2 answered HTTP 404; is the path" in said
        assert "\n" not in said
    with pytest.raises(LoadgenError, match=r"no KServe v2 API at /: GET /v2 answered HTTP 404"):
        asyncio.run(go(asks[0], ""))


def test_not_ready_without_a_repository_index_and_a_refused_key_are_told_apart():
    async def go(**answers):
        async with Fake(**answers).control() as control:
            await control.wait_model_ready("m", timeout_ns=0)

    listless = {"GET /v2": (200, {"name": "f"}), "GET /v2/health/ready": (200, "")}
    with pytest.raises(
        LoadgenError, match=r"^model 'm' is not ready at .*, which lists no models to tell why"
    ):
        asyncio.run(go(**listless))
    guarded = {"GET /v2": (401, ""), "POST /v2/repository/index": (401, "")}
    with pytest.raises(LoadgenError, match=r"refused model 'm': HTTP 401 \("):
        asyncio.run(go(**guarded))


def test_a_name_that_does_not_resolve_is_no_server_on_both_protocols():
    async def go(url):
        async with Control(parse_target(url), timeout_ns=5 * SECOND) as control:
            await control.wait_model_ready("m", timeout_ns=0)

    for url in ("http://nohost.invalid:8000", "grpc://nohost.invalid:8000"):
        with pytest.raises(NoServerError, match="no server answers at"):
            asyncio.run(go(url))


@pytest.mark.parametrize(
    "details",
    [
        "errors resolving h:1: [field:hostname lookup error:address lookup failed for h:1: Domain name not found]",
        "DNS resolution failed for h:1: C-ares status is not ARES_SUCCESS qtype=A name=h: Domain name not found",
        "address lookup failed for h:1: Name or service not known",
    ],
)
def test_grpcs_words_for_an_unknown_name_become_ours(details):
    assert lost_connection(details)
    channel = OfficialChannel(parse_target("grpc://h:1"), ConnectOptions())
    assert asyncio.run(channel.failure(details)) == ("name not found: h", False)


@asynccontextmanager
async def grpc_control(status=None, details="", **options):
    """A gRPC server that answers every call with one status; without one it has no service at all."""
    import grpc

    async def refuse(_, context):
        await context.abort(status, details)

    class Handler(grpc.GenericRpcHandler):
        def service(self, _):
            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.aio.server(handlers=[] if status is None else [Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Control(Target("grpc", "127.0.0.1", port), **options) as control:
            yield control
    finally:
        await server.stop(None)


def test_no_refusal_over_grpc_is_left_without_words():
    import grpc

    async def go(status, ask):
        async with grpc_control(status, "not for you") as control:
            await ask(control)

    refused = grpc.StatusCode.UNAUTHENTICATED
    asks = (
        lambda control: control.server_live(),
        lambda control: control.server_ready(),
        lambda control: control.server_metadata(),
        lambda control: control.model_ready("m"),
        lambda control: control.wait_model_ready("m", timeout_ns=0),
        lambda control: control.model_facts("m"),
        lambda control: control.statistics("m"),
        lambda control: control.load("m"),
        lambda control: control.unload("m"),
    )
    for ask in asks:
        with pytest.raises(LoadgenError, match="not for you"):
            asyncio.run(go(refused, ask))
    with pytest.raises(LoadgenError, match="has no KServe v2 service: it answered UNIMPLEMENTED"):
        asyncio.run(go(None, asks[4]))


def test_one_reading_can_be_capped_by_who_is_in_a_hurry():
    async def go(protocol, method):
        async def hang(reader, writer):
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        target = Target(protocol, "127.0.0.1", server.sockets[0].getsockname()[1])
        async with server, Control(target, timeout_ns=60 * SECOND) as control:
            await getattr(control, method)("m", timeout_ns=SECOND // 5)

    for protocol in ("http", "grpc"):
        for method in ("statistics", "settled_statistics"):
            with pytest.raises(NoServerError, match=r"no answer within 0.2 s"):
                asyncio.run(go(protocol, method))


def test_the_name_of_a_server_of_ours_is_in_the_hint(monkeypatch, tmp_path):
    from loadgen.triton import named

    monkeypatch.setenv("LOADGEN_TRITON_HOME", str(tmp_path))

    async def go():
        rows = (200, [{"name": "m"}])
        async with Fake(**{"POST /v2/repository/index": rows}).control() as control:
            folder = named.folder_of("mine")
            folder.mkdir(parents=True, exist_ok=True)
            us = {"keeper_pid": os.getpid(), "keeper_born": "x", "server_pid": os.getpid(), "repository": "r"}
            ports = {"http_port": control.target.port, "grpc_port": 2, "metrics_port": 3}
            (folder / "state.json").write_text(json.dumps(us | ports | {"server_born": born(os.getpid())}))
            await control.model_facts("m")

    with pytest.raises(LoadgenError, match=r"load it with `loadgen serve load m --name mine`, or POST"):
        asyncio.run(go())


CONFIGURATION = {"max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["32"]}]}


@pytest.mark.parametrize(
    ("what", "answer", "where"),
    [
        ("metadata", {}, "no name"),
        ("metadata", "", "no name"),
        ("metadata", {"error": "x"}, "no name"),
        ("metadata", METADATA | {"name": 5}, "name"),
        ("metadata", METADATA | {"inputs": {"x": {}}}, "inputs"),
        ("metadata", METADATA | {"inputs": [5]}, "inputs[0]"),
        ("metadata", METADATA | {"inputs": [{"name": "x", "datatype": "FP32"}]}, "no inputs[0].shape"),
        ("metadata", METADATA | {"outputs": [METADATA["inputs"][0] | {"shape": ["y"]}]}, "outputs[0].shape[0]"),
        ("metadata", METADATA | {"versions": 1}, "versions"),
        ("configuration", CONFIGURATION | {"max_batch_size": "x"}, "max_batch_size"),
        ("configuration", CONFIGURATION | {"input": "x"}, "input"),
        ("configuration", CONFIGURATION | {"instance_group": "x"}, "instance_group"),
        ("configuration", CONFIGURATION | {"instance_group": [{"count": "x"}]}, "instance_group[0].count"),
        ("configuration", CONFIGURATION | {"dynamic_batching": 5}, "dynamic_batching"),
        (
            "configuration",
            CONFIGURATION | {"dynamic_batching": {"preferred_batch_size": 4}},
            "dynamic_batching.preferred_batch_size",
        ),
        ("configuration", CONFIGURATION | {"parameters": {"vocab_size": "5"}}, "parameters.vocab_size"),
        ("configuration", CONFIGURATION | {"ensemble_scheduling": {"step": [{}]}}, "no ensemble_scheduling.step[0].model_name"),
    ],
)  # fmt: skip
def test_metadata_and_configurations_of_another_shape_are_told_with_the_key(what, answer, where):
    config = answer if what == "configuration" else CONFIGURATION
    fake = Fake(**{
        "GET /v2": (200, {"name": "mock", "extensions": None}),
        "GET /v2/models/m": (200, answer if what == "metadata" else METADATA),
        "GET /v2/models/m/config": (200, config),
    })  # fmt: skip

    async def go():
        async with fake.control() as control:
            await control.model_facts("m")

    with pytest.raises(LoadgenError) as caught:
        asyncio.run(go())
    assert str(caught.value).endswith(
        f" does not speak KServe v2: its {what} of model 'm' is not one: {where}"
    )


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"version": "1", "inference_count": "x"}, "model_stats[0].inference_count"),
        ({"version": "1", "inference_stats": 5}, "model_stats[0].inference_stats"),
        (
            {"version": "1", "inference_stats": {"queue": {"ns": [1]}}},
            "model_stats[0].inference_stats.queue.ns",
        ),
        (
            {"version": "1", "batch_stats": [{"batch_size": None}]},
            "no model_stats[0].batch_stats[0].batch_size",
        ),
    ],
)
def test_counters_that_are_no_numbers_are_told_with_the_key(row, where):
    fake = Fake(**{"GET /v2/models/m/stats": (200, {"model_stats": [row]})})

    async def go():
        async with fake.control() as control:
            await control.statistics("m")

    with pytest.raises(LoadgenError) as caught:
        asyncio.run(go())
    assert str(caught.value).endswith(f" holds none that can be read: {where}")
