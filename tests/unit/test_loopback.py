"""Which addresses and names are this machine's alone."""

from __future__ import annotations

import pytest

from celery_once_beat.errors import SettingError
from celery_once_beat.web.loopback import bind, is_loopback, names_this_machine


def test_loopback() -> None:
    """Nobody else reaches these; others may reach the rest, or it isn't certain."""
    ours = ["127.0.0.1", "127.255.255.254", "::1"]
    others = ["0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "fe80::1%eth0", "localhost", "", "::2"]
    assert [address for address in (*ours, *others) if is_loopback(address)] == ours


@pytest.mark.parametrize(
    "host",
    [None, "", "localhost.", "127.0.0.1.", "1270.0.1", "127.0.0.1:", "[::1", "::1", "l\u043ecalhost",
     "localhost:\u0663", "127.0.0.1:123456", "user@localhost", "localhost\n", "evil.example:5566", "0.0.0.0",
     "127.0.0.1.evil.example", "localhost.evil.example", "evil.example@127.0.0.1", "localhost:5566:evil.example",
     "127.0.0.1@evil.example", "evil.example/127.0.0.1",
     "10.0.0.1", "[::ffff:10.0.0.1]"],
)  # fmt: skip
def test_hosts_of_others(host: str | None) -> None:
    """What isn't exactly a name of the loopback isn't one."""
    assert not names_this_machine(host)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:5566", "127.0.0.1:80", "127.1.2.3:1", "[::1]:5566"])
def test_hosts_of_this_machine(host: str) -> None:
    """With any port: a tunnel has its own."""
    assert names_this_machine(host)


@pytest.mark.parametrize(("host", "port"), [("", 0), ("no such host.invalid", 0), ("192.0.2.1", 0), ("a" * 300, 0)])
def test_what_cant_be_listened_on(host: str, port: int) -> None:
    """It is said in one line, with what was found."""
    with pytest.raises(SettingError, match=r"^--host(: found '', expected|, --port: can't listen on )") as caught:
        bind(host, port)
    assert "\n" not in str(caught.value)
