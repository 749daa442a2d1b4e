"""Whom the board's guard lets in where it is mounted in another application: by its users, hosts and addresses."""

from __future__ import annotations

import asyncio
import hmac
from types import SimpleNamespace
from typing import Any

import pytest

from celery_once_beat.errors import SettingError
from celery_once_beat.web.board.guard import Access, Guard, Visitor, check_token
from celery_once_beat.web.loopback import bind, is_loopback, names_this_machine

LOOPBACK, PUBLIC = ("127.0.0.1", 8000), ("10.1.2.3", 8000)


def django(name: str, *, staff: bool = False) -> Any:
    return SimpleNamespace(is_authenticated=True, is_staff=staff, get_username=lambda: name)


def starlette(name: str) -> Any:
    return SimpleNamespace(is_authenticated=True, display_name=name)


NOBODY = SimpleNamespace(is_authenticated=False, display_name="")


def ask(
    access: Access,
    user: Any = None,
    server: Any = LOOPBACK,
    host: str = "localhost",
    method: str = "GET",
    **headers: str,
) -> Visitor | int:
    """Ask the guard; returns who is passed on, or the status of a refusal."""
    passed: list[Visitor] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(Visitor.of(scope))

    given = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    known = {} if user is None else {"user": user}
    sent = answer_of(Guard(app, access), given, method=method, path="/", scheme="http", server=server, **known)
    return passed[0] if passed else int(sent[0]["status"])


def answer_of(guard: Guard, headers: dict[str, str], body: bytes = b"", **scope: Any) -> list[Any]:
    """The messages by which it answers."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(guard({"type": "http", "query_string": b"", "headers": given, **scope}, receive, send))  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize(
    ("server", "host", "hosts", "passes"),
    [
        (LOOPBACK, "localhost:8000", (), True),
        (LOOPBACK, "evil.example", (), False),
        (LOOPBACK, "ops.example:8443", ("ops.example",), True),
        (LOOPBACK, "", ("",), False),
        (("0.0.0.0", 8000), "evil.example", (), False),
        (("localhost", 8000), "evil.example", (), False),
        (("/run/board.sock", None), "evil.example", (), False),
        (None, "evil.example", (), False),
        (PUBLIC, "ops.example", (), True),
        (PUBLIC, "evil.example", (), True),
    ],
)
def test_a_rebound_name_gets_nothing(server: Any, host: str, hosts: tuple[str, ...], passes: bool) -> None:
    """Where only this machine may reach the server, the Host names it, or one that was allowed: a user too."""
    found = ask(Access(hosts=hosts), starlette("anna"), server, host)
    assert found == (Visitor("anna") if passes else 400)


def test_without_a_token_others_have_to_be_known() -> None:
    """Who is on this machine may look, and never act; elsewhere nobody may who isn't authenticated."""
    assert ask(Access(actions=True)) == Visitor()
    assert ask(Access(actions=True), NOBODY) == Visitor()
    assert ask(Access(actions=True), method="POST", origin="http://localhost") == 403
    for user in (None, NOBODY, SimpleNamespace(), SimpleNamespace(is_authenticated="yes")):
        assert ask(Access(actions=True), user, PUBLIC) == 403
        assert ask(Access(actions=True, hosts=["ops.example"]), user, LOOPBACK, "ops.example") == 403


def test_who_acts_is_the_scopes_user() -> None:
    """By the name that Django, or Starlette, knows; a function chooses among them."""
    staff, other = django("anna", staff=True), django("bob")
    only_staff = Access(actions=lambda user: user.is_staff)
    assert ask(only_staff, staff, PUBLIC) == Visitor("anna", acts=True)
    assert ask(only_staff, other, PUBLIC) == Visitor("bob", acts=False)
    assert ask(only_staff, other, PUBLIC, "ops", "POST", origin="http://ops") == 403
    assert ask(only_staff, staff, PUBLIC, "ops", "POST", origin="http://ops") == Visitor("anna", acts=True)
    assert ask(Access(actions=True), starlette("carl"), PUBLIC) == Visitor("carl", acts=True)
    assert ask(Access(), starlette("carl"), PUBLIC) == Visitor("carl", acts=False)
    assert ask(Access(), starlette("carl"), PUBLIC, "ops", "POST", origin="http://ops") == 405
    assert ask(Access(), starlette("a\nb\u202e"), PUBLIC) == Visitor(r"'a\nb\u202e'")


async def coroutine(user: Any) -> bool:
    return False


def test_nobody_acts_by_a_slip() -> None:
    """A function that answers later would be true for everybody; so would a text. A text is no list of hosts."""
    with pytest.raises(SettingError, match="expected a function that isn't async"):
        ask(Access(actions=coroutine), starlette("anna"), PUBLIC)
    for actions in ("no", 1, None, ["anna"]):
        with pytest.raises(SettingError, match="actions: found"):
            Access(actions=actions)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="hosts: found 'ops"):
        Access(hosts="ops.example")


def test_a_token_beside_users() -> None:
    """It lets in who isn't known; where a function chooses users, it doesn't let act."""
    token = "0123456789abcdef"
    bearer = {"authorization": f"Bearer {token}"}
    assert ask(Access(token, actions=True), None, PUBLIC) == 401
    assert ask(Access(token, actions=True), None, PUBLIC, **bearer) == Visitor(acts=True)
    assert ask(Access(token, actions=lambda _: True), None, PUBLIC, **bearer) == Visitor()
    assert ask(Access(token, actions=True), starlette("anna"), PUBLIC) == Visitor("anna", acts=True)
    with pytest.raises(SettingError, match="found 5 characters"):
        check_token("short")


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is given, digests of one length are compared, and by compare_digest."""
    token, compared = "0123456789abcdef", []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *two: compared.append([*map(len, two)]) or compare(*two))
    assert ask(Access(token), None, PUBLIC, authorization=f"Bearer {token}") == Visitor()
    for given in ({"authorization": "Bearer x"}, {"cookie": "once_board=x"}):
        before = len(compared)
        assert ask(Access(token), None, PUBLIC, **given) == 401  # type: ignore[arg-type]
        assert len(compared) > before
    assert all(lengths == [32, 32] for lengths in compared)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_cookie_of_a_board_behind_tls_is_for_tls_alone(scheme: str) -> None:
    """A browser sends it nowhere else."""
    form = {"content-type": "application/x-www-form-urlencoded", "host": "ops", "origin": f"{scheme}://ops"}
    guard, body = Guard(None, Access("0123456789abcdef")), b"token=0123456789abcdef"  # type: ignore[arg-type]
    sent = answer_of(guard, form, body, method="POST", path="/token", scheme=scheme, server=PUBLIC)
    assert sent[0]["status"] == 303
    assert (b"Secure" in dict(sent[0]["headers"])[b"set-cookie"]) == (scheme == "https")


def test_wrong_tokens_are_slowed_down_and_hold_up_nobody_else() -> None:
    """Each is answered later than the one before; who knows the token is let in meanwhile."""
    token, answered = "0123456789abcdef", []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answered.append("let in")

    guard = Guard(app, Access(token))

    async def enter(given: str) -> None:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answered.append(given)

        headers = [(b"host", b"h"), (b"authorization", f"Bearer {given}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
        await guard(scope, None, send)  # type: ignore[arg-type]

    async def all_at_once() -> None:
        await asyncio.gather(*(enter(f"wrong-{number}") for number in range(6)), enter(token))

    asyncio.run(all_at_once())
    # The first is a slip of somebody's fingers.
    assert answered.index("let in") <= 1
    assert answered[-5:] == [f"wrong-{number}" for number in range(1, 6)]


def test_a_form_comes_from_the_board_itself() -> None:
    """As the browser says; a page of another origin, port or scheme says something else."""
    access, anna = Access(actions=True), starlette("anna")
    for headers in (
        {},
        {"origin": "null"},
        {"origin": "http://ops:81"},
        {"origin": "ftp://ops"},
        {"origin": "http://ops", "sec_fetch_site": "cross-site"},
    ):
        assert ask(access, anna, PUBLIC, "ops", "POST", **headers) == 403, headers
    for headers in ({"origin": "http://ops"}, {"origin": "https://OPS"}, {"sec_fetch_site": "same-origin"}):
        assert ask(access, anna, PUBLIC, "ops", "POST", **headers) == Visitor("anna", acts=True)


# -- which addresses and names are this machine's alone


def test_loopback() -> None:
    """Nobody else reaches these; others may reach the rest, or it isn't certain."""
    ours = ["127.0.0.1", "127.255.255.254", "::1"]
    others = ["0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "fe80::1%eth0", "localhost", "", "::2"]
    assert [address for address in (*ours, *others) if is_loopback(address)] == ours


def test_hosts_of_this_machine() -> None:
    """With any port: a tunnel has its own. What isn't exactly a name of the loopback isn't one."""
    ours = ["localhost", "LOCALHOST:5566", "127.0.0.1:80", "127.1.2.3:1", "[::1]:5566"]
    others = [
        None, "", "localhost.", "127.0.0.1.", "1270.0.1", "127.0.0.1:", "[::1", "::1", "l\u043ecalhost",
        "localhost:\u0663", "127.0.0.1:123456", "user@localhost", "localhost\n", "evil.example:5566", "0.0.0.0",
        "127.0.0.1.evil.example", "localhost.evil.example", "evil.example@127.0.0.1", "localhost:5566:evil.example",
        "127.0.0.1@evil.example", "evil.example/127.0.0.1", "10.0.0.1", "[::ffff:10.0.0.1]",
    ]  # fmt: skip
    assert [host for host in (*ours, *others) if names_this_machine(host)] == ours


@pytest.mark.parametrize(("host", "port"), [("", 0), ("no such host.invalid", 0), ("192.0.2.1", 0), ("a" * 300, 0)])
def test_what_cant_be_listened_on(host: str, port: int) -> None:
    """It is said in one line, with what was found."""
    with pytest.raises(SettingError, match=r"^--host(: found '', expected|, --port: can't listen on )") as caught:
        bind(host, port)
    assert "\n" not in str(caught.value)
