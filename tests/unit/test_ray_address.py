"""An address without a cluster is told before Ray is asked, which would try for minutes."""

import socket

import pytest

from securevfl.errors import ConfigError
from securevfl.ray_cluster import require_head


@pytest.mark.parametrize("before", ["", "ray://"])
def test_nobody_listens_there(before: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--ray {before}127.*{port}: no cluster there"):
            require_head(f"{before}127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "[::1]:99999"])
def test_no_such_port(address: str) -> None:
    with pytest.raises(ConfigError, match="no cluster there"):
        require_head(address)


@pytest.mark.parametrize("address", ["local", "auto"])
def test_what_is_no_place_is_left_to_ray(address: str) -> None:
    require_head(address)


def test_somebody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_head(f"127.0.0.1:{server.getsockname()[1]}")
