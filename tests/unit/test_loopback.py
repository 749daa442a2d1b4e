"""Which addresses and names are this machine's alone."""

from __future__ import annotations

import pytest

from celery_once_beat.errors import SettingError
from celery_once_beat.web.loopback import bind, is_loopback, names_this_machine


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.255.254", "::1"])
def test_loopback(address: str) -> None:
    """Nobody else reaches these."""
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "fe80::1%eth0", "localhost", "", "::2"])
def test_not_loopback(address: str) -> None:
    """Others do, or it isn't certain."""
    assert not is_loopback(address)


@pytest.mark.parametrize(
    "host",
    [None, "", "localhost.", "127.0.0.1.", "1270.0.1", "127.0.0.1:", "[::1", "::1", "l\u043ecalhost",
     "localhost:\u0663", "127.0.0.1:123456", "user@localhost", "localhost\n"],
)  # fmt: skip
def test_hosts_of_others(host: str | None) -> None:
    """What isn't exactly a name of the loopback isn't one."""
    assert not names_this_machine(host)


@pytest.mark.parametrize(("host", "port"), [("", 0), ("no such host.invalid", 0), ("192.0.2.1", 0), ("a" * 300, 0)])
def test_what_cant_be_listened_on(host: str, port: int) -> None:
    """It is said in one line, with what was found."""
    with pytest.raises(SettingError, match=r"^--host(: found '', expected|, --port: can't listen on )") as caught:
        bind(host, port)
    assert "\n" not in str(caught.value)
