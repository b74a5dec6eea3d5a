"""A client of OpenAI's API: what it sends, what it takes from a stream, and what it says when something is wrong."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from stub_server import DONE, Reply, StubServer, answer, event, failure, piece, stub_server

from ringpost.actors.chat_backends import ChatBackend, running_server
from ringpost.actors.errors import EngineError
from ringpost.ipc.messages.errors import ParameterError

QUESTION = [{"role": "user", "content": "why?"}]


async def answered(backend: ChatBackend) -> list[str]:
    return [text async for text in backend.answer(QUESTION)]


@asynccontextmanager
async def talking_to(stub: StubServer, **options: Any) -> AsyncIterator[ChatBackend]:
    async with running_server(stub.url, None, None, options) as backend:
        yield backend


@pytest.mark.asyncio
async def test_it_sends_what_it_was_given_and_no_more(no_leaks: None) -> None:
    with stub_server(answer("so", " it is")) as stub:
        async with running_server(stub.url, "secret", None, {"temperature": 0.0}) as backend:
            assert await answered(backend) == ["so", " it is"]
        assert stub.bodies == [{"model": "first", "messages": QUESTION, "stream": True, "temperature": 0.0}]
        assert stub.keys == ["Bearer secret", "Bearer secret"]


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
async def test_the_address_may_end_as_it_likes(no_leaks: None, ending: str) -> None:
    with stub_server(answer("so")) as stub:
        async with running_server(stub.url + ending, None, "second", {}) as backend:
            assert await answered(backend) == ["so"]
        assert stub.bodies[0]["model"] == "second"
        assert stub.keys == [None]  # with a model's name nothing needs to be asked before


@pytest.mark.asyncio
async def test_leaving_an_answer_aborts_it(no_leaks: None) -> None:
    with stub_server(Reply(piece("so"), then="hold"), answer("again")) as stub:
        async with talking_to(stub) as backend:
            async with aclosing(backend.answer(QUESTION)) as pieces:
                assert await anext(pieces) == "so"
                assert not stub.was_left.is_set()
            assert await asyncio.to_thread(stub.was_left.wait, 60)
            assert await answered(backend) == ["again"]


@pytest.mark.asyncio
async def test_what_a_stream_may_hold(no_leaks: None) -> None:
    nothing = event(choices=[{"index": 0, "delta": {"content": None}}]) + event(choices=[], usage={"total_tokens": 3})
    named = b"event: message\nid: 7\nretry: 10\n" + piece("ü\n")
    content = (
        b": a comment\n\n" + nothing + named + piece("!").replace(b": ", b":") + b"data:[DONE]\r\n\r\n" + piece("too late")
    )
    with stub_server(Reply(content), Reply(b"event:x\n" + piece("so") + DONE)) as stub:
        async with talking_to(stub) as backend:
            assert await answered(backend) == ["ü\n", "!"]
            assert await answered(backend) == ["so"]


BROKEN_STREAMS = {
    "an error": (event(error={"message": "no more memory", "code": 500}) + DONE, "fails: no more memory"),
    "no end": (b"", r"before its \[DONE\]"),
    "no event": (b"<html>\n", "no event of a stream: b'<html>"),
    "half an event": (b"data: {\n\n", "cannot be read"),
    "a wrong type": (event(choices=[{"delta": {"content": 3}}]), "cannot be read"),
    "no limit": (b"data: " + b"x" * (4 << 20), "more than 1048576 bytes"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("what", BROKEN_STREAMS)
async def test_a_broken_stream_is_a_failure_after_what_came_before(no_leaks: None, what: str) -> None:
    content, told = BROKEN_STREAMS[what]
    with stub_server(Reply(piece("so") + content)) as stub:
        async with talking_to(stub) as backend:
            pieces = backend.answer(QUESTION)
            assert await anext(pieces) == "so"
            with pytest.raises(EngineError, match=told) as caught:
                await anext(pieces)
            assert stub.url in str(caught.value)


@pytest.mark.asyncio
async def test_a_broken_connection_is_a_failure(no_leaks: None) -> None:
    with stub_server(Reply(piece("so"), then="break")) as stub:
        async with talking_to(stub) as backend:
            with pytest.raises(EngineError, match=f"{stub.url} breaks the connection"):
                await answered(backend)


@pytest.mark.asyncio
async def test_a_refusal_is_a_mistake_and_has_its_code(no_leaks: None) -> None:
    with stub_server(Reply(failure("too long", "context_length_exceeded"), 400), Reply(b"<html>", 404)) as stub:
        async with talking_to(stub) as backend:
            with pytest.raises(ParameterError, match=f"{stub.url} answers 400: too long") as caught:
                await answered(backend)
            assert caught.value.code == "context_length_exceeded"
            with pytest.raises(ValueError, match="answers 404: Not Found"):
                await answered(backend)


@pytest.mark.asyncio
async def test_a_failure_is_none_of_ours(no_leaks: None) -> None:
    with stub_server(Reply(failure("too busy"), 503)) as stub:
        async with talking_to(stub) as backend:
            with pytest.raises(EngineError, match=f"{stub.url} answers 503: too busy"):
                await answered(backend)


@pytest.mark.asyncio
@pytest.mark.parametrize("content", [b"<html>", b"{}", b'{"data": []}'])
async def test_a_server_of_something_else(no_leaks: None, content: bytes) -> None:
    with stub_server(models=Reply(content)) as stub, pytest.raises(ValueError, match="does not speak OpenAI's API"):
        async with talking_to(stub):
            raise AssertionError("it was taken for a server")


@pytest.mark.asyncio
async def test_a_server_that_is_not_there(no_leaks: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"{url} cannot be reached: Connection refused"):
            async with running_server(url, None, None, {}):
                raise AssertionError("something was there")


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "localhost", "ftp://host", "http://", "http://h:port", "http://[::1"])
async def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match=r"url must be like http://127\.0\.0\.1:8000, got "):
        async with running_server(url, None, None, {}):
            raise AssertionError("it was taken for an address")
