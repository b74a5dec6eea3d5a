"""Bodies that cannot be read: their form, their size, what they say they are."""

import gzip
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from api_client import CHAT, COMPLETIONS
from scripted_engine import ScriptedEngine
from served_app import AppClient, connection, post_bytes, served

from ringpost.actors.api import validation
from ringpost.actors.api.app import gate_of

LIMIT = 1000  # bytes of a body


@pytest_asyncio.fixture
async def api(tiny: str) -> AsyncIterator[AppClient]:
    async with served(ScriptedEngine(tiny)) as client:
        yield client


@pytest_asyncio.fixture
async def small_api(tiny: str) -> AsyncIterator[AppClient]:
    """It takes bodies of a thousand bytes."""
    async with served(ScriptedEngine(tiny), max_body_bytes=LIMIT) as client:
        yield client


NOT_JSON: list[tuple[bytes, str]] = [
    (b"", "JSON"),
    (b"{", "JSON"),
    (b'{"prompt":', "JSON"),
    (b'{"prompt": "hi"} x', "JSON"),
    (b'{"prompt": NaN}', "JSON"),
    (b'{"prompt": "hi", "temperature": NaN}', "JSON"),
    (b'{"prompt": "hi", "temperature": Infinity}', "JSON"),
    (b"\xff", "UTF-8: byte 0xff at 0"),
    (b'{"prompt": "\xff"}', "UTF-8"),
    (b'{"prompt": "hi", "foo": "\xff"}', "UTF-8"),
    (b'{"prompt": "\\ud83d"}', "JSON"),
    (b'{"prompt": "hi", "foo": "\\ud83d"}', "JSON"),
    (b"[]", "must be an object, got []"),
    (b"5", "must be an object, got 5"),
    (b'"x"', 'must be an object, got "x"'),
    (b"null", "must be an object, got null"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("body", "named"), NOT_JSON)
async def test_a_body_that_is_no_object(api: AppClient, body: bytes, named: str) -> None:
    error = await api.refused(COMPLETIONS, body)
    assert error["param"] is None
    assert named in error["message"]


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ['"foo": ', '"tools": ', '"seed": ', '"logit_bias": ', '"prompt": '])
async def test_nesting_is_never_a_fault_of_the_servers(api: AppClient, place: str, caplog: pytest.LogCaptureFixture) -> None:
    """However the depth lies to what the interpreter can take: the answer is 200 or 400."""
    for depth in (2, 100, *range(900, 1010, 5), 100_000):
        nested = "[" * depth + "]" * depth
        body = f"{{{place}{nested}}}" if "prompt" in place else f'{{"prompt": "hi", {place}{nested}}}'
        reply = await api.call(COMPLETIONS, body.encode())
        assert reply.status == 400 or (place, reply.status) == ('"foo": ', 200), (depth, reply.body)
        assert len(reply.body) < LIMIT
    assert not caplog.records


@pytest.mark.asyncio
async def test_a_reply_is_small_however_many_mistakes_there_are(api: AppClient) -> None:
    for content in (5, None, [5] * 3):
        await api.refused(CHAT, {"messages": [{"role": "user", "content": content}] * 5000})
    await api.refused(COMPLETIONS, {"prompt": "hi", "seed": "x" * 100_000})
    await api.refused(COMPLETIONS, {"prompt": "hi", "n": ["x" * 100_000]})
    await api.refused(COMPLETIONS, {"prompt": ["x" * 100_000]})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x", ""]
)
async def test_a_wrong_content_type(api: AppClient, kind: str) -> None:
    reply = await api.call(COMPLETIONS, b'{"prompt": "hi"}', {"Content-Type": kind})
    assert reply.status == 415
    assert repr(kind) in reply.error["message"]
    assert "application/json" in reply.error["message"]


@pytest.mark.asyncio
async def test_no_content_type_and_one_that_is_no_text(api: AppClient) -> None:
    for header in (b"", b"Content-Type: text/\xff\r\n"):
        answer = await api.raw(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n" + header + b"\r\n{}"
        )
        assert answer.startswith(b"HTTP/1.1 415 ")


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
async def test_right_content_types(api: AppClient, kind: str) -> None:
    assert (await api.call(COMPLETIONS, b'{"prompt": "hi"}', {"Content-Type": kind})).status == 200


def padded(size: int) -> bytes:
    """A good body of so many bytes."""
    return b'{"prompt": "hi"}'.ljust(size)


async def chunked(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 100):
        yield content[start : start + 100]


@pytest.mark.asyncio
async def test_the_largest_body(small_api: AppClient) -> None:
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413), (50 * LIMIT, 413)):
        with_length = await small_api.call(COMPLETIONS, padded(size))
        without = await small_api.call(COMPLETIONS, chunked(padded(size)), {"Content-Type": "application/json"})
        assert with_length.status == without.status == status
        if status == 413:
            assert with_length.error["code"] == without.error["code"] == "body_too_large"
            assert f"at most {LIMIT} bytes" in without.error["message"]
            assert str(size) in with_length.error["message"]


@pytest.mark.asyncio
async def test_a_compressed_body_counts_as_what_it_expands_to(small_api: AppClient) -> None:
    async def send(content: bytes) -> tuple[int, bytes]:
        reply = await small_api.call(COMPLETIONS, content, {"Content-Encoding": "gzip"})
        return reply.status, reply.body

    assert (await send(gzip.compress(padded(LIMIT))))[0] == 200
    for size in (LIMIT + 1, 100_000, 50_000_000):
        status, body = await send(gzip.compress(padded(size), 1 if size > LIMIT * LIMIT else 9))
        assert status == 413, body


@pytest.mark.asyncio
@pytest.mark.parametrize("content", [b"\x1f\x8bnonsense", b'{"prompt": "hi"}', gzip.compress(padded(100), mtime=0)[:-20]])
async def test_a_body_that_is_not_compressed_as_it_says(
    small_api: AppClient, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await small_api.call(COMPLETIONS, content, {"Content-Encoding": "gzip"})
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert not caplog.records


HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{}\r\n\r\n"
UNFINISHED = [  # and how many bytes of the body there are
    (HEAD.format(COMPLETIONS, "Content-Length: 16") + '{"prompt": "hi"', 15),
    (HEAD.format(CHAT, "Content-Length: 16"), 0),
    (HEAD.format(COMPLETIONS, "Transfer-Encoding: chunked") + '8\r\n{"prompt\r\n', 8),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("sent", "count"), UNFINISHED)
async def test_a_body_that_takes_too_long(
    tiny: str, sent: str, count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has to wait for it, not even a shutdown."""
    monkeypatch.setattr(validation, "_BODY_SECONDS", 0.01)
    engine = ScriptedEngine(tiny)
    async with served(engine) as api:
        async with connection(api.url) as (reader, writer):
            writer.write(sent.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            error = json.loads(await reader.readuntil(b"}}"))["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"] == f"the body must be sent within 0.01 s, got {count} bytes of it"
            assert gate_of(api.app).inside == 0
        assert (await api.call(COMPLETIONS, {"prompt": "hi"})).status == 200
    assert len(engine.requests) == 1
    assert not caplog.records


@pytest.mark.asyncio
async def test_a_body_that_never_comes_to_its_end(tiny: str) -> None:
    """The client leaves before: nothing reaches the engine, and the next request is answered."""
    engine = ScriptedEngine(tiny)
    async with served(engine) as api:
        async with connection(api.url) as (_, writer):
            writer.write(post_bytes(COMPLETIONS, {"prompt": "hi"})[:-1])
        assert (await api.call(COMPLETIONS, {"prompt": "hi"})).status == 200
        left = 'ringpost:http_requests_total{handler="/v1/completions",method="POST",status="499"} 1.0'
        while left not in (await api.get("/metrics")).body.decode():
            pass
    assert len(engine.requests) == 1
