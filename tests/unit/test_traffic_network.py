import pytest
from pydantic import ValidationError

from loadgen.traffic.network import Network


def test_read():
    network = Network.model_validate(
        {"delay": "100ms", "jitter": "5ms", "bandwidth": "10MiB/s", "loss": "0.1%"}
    )
    assert (network.delay_ns, network.jitter_ns, network.bytes_per_s) == (100_000_000, 5_000_000, 10 << 20)
    assert network.loss == pytest.approx(0.001)
    assert network.round_trip_ns == 200_000_000
    assert network.words == (
        "100 ms +- 5 ms each way (a round trip takes 200 ms more), 10 MiB/s each way, 0.1 % of packets lost"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "changes nothing"),
        ({"delay": "0ms"}, "changes nothing"),
        ({"delay": 100}, "has no unit"),
        ({"delay": "2m"}, "longer than 60 s each way"),
        ({"delay": "1ms", "jitter": "2ms"}, "more than the delay"),
        ({"bandwidth": "10MiB"}, "bytes per s, e.g. 10MiB/s"),
        ({"bandwidth": "1B/s"}, "out of range"),
        ({"delay": "1ms", "loss": 0.1}, "not a percentage"),
        ({"delay": "1ms", "loss": "100%"}, "loses everything"),
        ({"delay": "1ms", "lag": "1ms"}, "Extra inputs"),
    ],
)
def test_refused(given, says):
    with pytest.raises(ValidationError, match=says):
        Network.model_validate(given)
