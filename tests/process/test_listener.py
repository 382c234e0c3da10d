import os
import socket
import sys

import pytest

from mlxceld.process.listener import ListenError, listen, local_url
from mlxceld.process.portholder import parse_lsof, port_holder


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="needs IPv6 on loopback")


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_port_0_takes_a_free_one_and_says_which() -> None:
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    assert port > 0
    assert local_url("127.0.0.1", sockets) == f"http://127.0.0.1:{port}"
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    close(sockets)


def test_all_addresses_of_a_name_get_the_same_port() -> None:
    sockets = listen("localhost", 0)
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    assert sockets[0].getsockname()[0] == "127.0.0.1"
    assert local_url("localhost", sockets).startswith("http://localhost:")
    close(sockets)


@needs_ipv6
def test_ipv6() -> None:
    sockets = listen("::1", 0)
    port = sockets[0].getsockname()[1]
    assert local_url("::1", sockets) == f"http://[::1]:{port}"
    socket.create_connection(("::1", port), timeout=5).close()
    close(sockets)


@needs_ipv6
def test_every_address_is_both_kinds() -> None:
    sockets = listen("::", 0)
    port = sockets[0].getsockname()[1]
    assert local_url("::", sockets) == f"http://[::1]:{port}"
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, port), timeout=5).close()
    close(sockets)


def test_a_wildcard_is_reached_over_loopback() -> None:
    sockets = listen("0.0.0.0", 0)
    assert local_url("0.0.0.0", sockets).startswith("http://127.0.0.1:")
    close(sockets)


def test_a_port_in_use_says_by_whom() -> None:
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    with pytest.raises(ListenError, match=f"port {port} on 127.0.0.1 is in use by") as refused:
        listen("127.0.0.1", port)
    assert refused.value.exit_code == 1
    if sys.platform == "linux":
        assert f"process {os.getpid()} (" in str(refused.value)
    close(sockets)
    # A connection that was closed a moment ago does not keep the port.
    close(listen("127.0.0.1", port))


def test_one_address_in_use_leaves_none_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ListenError):
            listen("localhost", port)
        if has_ipv6():
            socket.create_server(("::1", port), family=socket.AF_INET6).close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("no-such-name.invalid", "'no-such-name.invalid': no such address or name"),
        ("192.0.2.1", "'192.0.2.1' is not an address of this machine"),
        ("a" * 100, "no such address or name"),
    ],
)
def test_a_host_that_is_not_here_is_a_wrong_setting(host: str, expected: str) -> None:
    with pytest.raises(ListenError, match=expected) as refused:
        listen(host, 0)
    assert refused.value.exit_code == 78


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nobody_holds_a_free_port() -> None:
    sockets = listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    holder = port_holder(port)
    assert holder is not None
    assert holder.startswith(f"process {os.getpid()} (")
    close(sockets)
    assert port_holder(port) is None


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("p812\ncControlCenter\nf10\n", "process 812 (ControlCenter)"),
        ("p812\ncone\np813\nctwo\n", "process 812 (one)"),
        ("p812\n", "process 812"),
        ("", None),
    ],
)
def test_what_lsof_says(output: str, expected: str | None) -> None:
    assert parse_lsof(output) == expected
