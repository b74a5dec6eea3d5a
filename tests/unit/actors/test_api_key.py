"""Who may ask: the API key, and what is open without it."""

import hmac
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from api_client import CHAT, COMPLETIONS
from scripted_engine import ScriptedEngine
from served_app import AppClient, served

BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
KEY = "sk-schlüssel"


@pytest_asyncio.fixture
async def locked(tiny: str) -> AsyncIterator[AppClient]:
    """A server that asks for a key."""
    async with served(ScriptedEngine(tiny), api_key=KEY, enable_reset_prefix_cache=True) as client:
        yield client


AUTHORIZATIONS = [
    (f"Bearer {KEY}", True),
    (f"bearer {KEY}", True),
    (f"Bearer  {KEY} ", True),
    (None, False),
    ("", False),
    ("Bearer", False),
    ("Bearer ", False),
    (KEY, False),
    (f"Basic {KEY}", False),
    (f"Bearer {KEY}x", False),
    (f"Bearer {KEY[:-1]}", False),
    ("Bearer sk-schl?ssel", False),
    ("Bearer ключ", False),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("header", "right"), AUTHORIZATIONS)
async def test_the_key_opens_the_api(locked: AppClient, header: str | None, right: bool) -> None:
    headers = {} if header is None else {"Authorization": header}
    for path, body, method in (
        (COMPLETIONS, BODIES[COMPLETIONS], "POST"),
        (CHAT, BODIES[CHAT], "POST"),
        ("/v1/models", None, "GET"),
        ("/reset_prefix_cache", None, "POST"),
    ):
        reply = await locked.call(path, body, headers, method)
        assert reply.status == (200 if right else 401)
        if not right:
            assert reply.error["code"] == "invalid_api_key"
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert KEY.encode() not in reply.body


@pytest.mark.asyncio
async def test_a_key_that_is_no_text(locked: AppClient) -> None:
    for key in (b"\xff\xfe", "sk-schlüssel".encode("latin-1")):
        head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + key
        assert (await locked.raw(head + b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")


@pytest.mark.asyncio
async def test_what_is_open_without_a_key(locked: AppClient) -> None:
    for path in ("/health", "/ping", "/metrics", "/version"):
        assert (await locked.get(path)).status == 200
    for path in ("/v1/models/other", "/v1/nope", "/v1/"):
        assert (await locked.get(path)).status == 401, "whether a path exists is nobody's business"
    assert (await locked.get("/reset_prefix_cache")).status == 405
    assert (await locked.get("/nope")).status == 404


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "path", ["//v1/models", "/./v1/models", "/x/../v1/models", "/v1%2Fmodels", "/%761/models", "http://x/v1/models"]
)
async def test_no_way_of_writing_a_path_leads_around_the_key(locked: AppClient, path: str) -> None:
    reply = await locked.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert reply.split(maxsplit=2)[1] in (b"401", b"404")


@pytest.mark.asyncio
@pytest.mark.parametrize("form", ["/{}?x=1", "//{}", "/{}/", "/./{}", "/x/../{}", "/%72eset%5Fprefix_cache", "http://x/{}"])
async def test_no_way_of_writing_the_reset_leads_around_the_key(tiny: str, form: str) -> None:
    engine = ScriptedEngine(tiny)
    path = form.format("reset_prefix_cache")
    async with served(engine, api_key=KEY, enable_reset_prefix_cache=True) as api:
        reply = await api.raw(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    assert reply.split(maxsplit=2)[1] in (b"401", b"404")
    assert engine.resets == []


@pytest.mark.asyncio
async def test_keys_are_compared_in_constant_time(locked: AppClient, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(given: bytes, wanted: bytes) -> bool:
        compared.append((given, wanted))
        return True

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert (await locked.get("/v1/models", {"Authorization": "Bearer x"})).status == 200
    assert compared == [(b"x", KEY.encode())]


@pytest.mark.asyncio
async def test_without_a_key_any_header_will_do(tiny: str) -> None:
    async with served(ScriptedEngine(tiny)) as api:
        assert (await api.get("/v1/models", {"Authorization": "Bearer x"})).status == 200
