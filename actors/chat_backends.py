"""Who answers in `ringpost chat`: an engine of this process, or a server that speaks OpenAI's API."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.errors import ParameterError
from ..ipc.messages.sampling import RequestOutputKind, SamplingParams
from .errors import EngineError
from .frontend.async_llm import AsyncLLM

Messages = list[dict[str, Any]]  # [{"role": "user", "content": "Hi"}, ...]

_CONNECT_SECONDS = 10.0
_LINE_BYTES = 1 << 20  # of an event


class ChatBackend(Protocol):
    """Answers conversations."""

    def answer(self, messages: Messages) -> AsyncGenerator[str, None]:
        """The pieces of the answer, none of them empty, as they come. Closing the generator aborts what is not said yet.

        Raises ValueError for a mistake of the caller's, a ParameterError with the code `context_length_exceeded` where the
        conversation is too long; EngineError for a failure of whoever answers.
        """


@asynccontextmanager
async def own_engine(config: EngineConfig, params: SamplingParams) -> AsyncIterator[ChatBackend]:
    """An engine as long as the block. Raises what AsyncLLM raises."""
    async with AsyncLLM(config) as engine:
        yield _Engine(engine, msgspec.structs.replace(params, output_kind=RequestOutputKind.DELTA))


@asynccontextmanager
async def running_server(
    url: str, api_key: str | None, model: str | None, options: dict[str, Any]
) -> AsyncIterator[ChatBackend]:
    """A server, asked for its first model unless one is named. `options` are fields of every request.

    Raises ValueError, naming the URL, when it cannot be reached or refuses us.
    """
    base = _base_url(url)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=_LINE_BYTES) as session:
        server = _Server(session, base, options)
        options["model"] = await server.first_model() if model is None else model
        yield server


def _base_url(url: str) -> str:
    """The address without `/v1`. Raises ValueError for anything but http://HOST and https://HOST."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        valid = False
    if not valid:
        raise ValueError(f"url must be like http://127.0.0.1:8000, got {url!r}")
    return url.rstrip("/").removesuffix("/v1")


class _Engine:
    def __init__(self, engine: AsyncLLM, params: SamplingParams) -> None:
        self._engine = engine
        self._params = params

    async def answer(self, messages: Messages) -> AsyncGenerator[str, None]:
        prompt = await self._engine.chat_prompt(messages)
        async with aclosing(self._engine.generate(prompt, self._params)) as outputs:
            async for output in outputs:
                if text := output.outputs[0].text:
                    yield text


# What we read of a server's replies; servers other than ours fill the rest differently.
class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Error(msgspec.Struct):
    message: str
    param: str | None = None
    code: str | int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


class _Failure(msgspec.Struct):
    error: _Error


class _Server:
    def __init__(self, session: aiohttp.ClientSession, url: str, options: dict[str, Any]) -> None:
        self._session = session
        self._url = url
        self._options = options

    async def first_model(self) -> str:
        with self._explained():
            async with self._session.get(f"{self._url}/v1/models") as response:
                await self._check_status(response)
                body = await response.read()
        try:
            return msgspec.json.decode(body, type=_Models).data[0].id
        except (msgspec.DecodeError, IndexError):
            raise ValueError(f"{self._url} does not speak OpenAI's API: /v1/models gives {body!r:.100}") from None

    async def answer(self, messages: Messages) -> AsyncGenerator[str, None]:
        body = {**self._options, "messages": messages, "stream": True}
        with self._explained():
            async with self._session.post(f"{self._url}/v1/chat/completions", json=body) as response:
                await self._check_status(response)
                async with aclosing(self._events(response)) as events:
                    async for event in events:
                        for choice in event.choices:
                            if choice.delta.content:
                                yield choice.delta.content

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncGenerator[_Event, None]:
        """The events before [DONE]. Raises EngineError for one that reports an error, and for a stream that ends otherwise."""
        while line := await self._line(response):
            if line.isspace() or line.startswith((b":", b"event:", b"id:", b"retry:")):  # all that matters is in the data
                continue
            if not line.startswith(b"data:"):
                raise EngineError(f"{self._url} sends what is no event of a stream: {line!r:.100}")
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            try:
                event = msgspec.json.decode(data, type=_Event)
            except msgspec.DecodeError as error:
                raise EngineError(f"{self._url} sends an event that cannot be read ({error}): {data!r:.100}") from None
            if event.error is not None:
                raise EngineError(f"{self._url} fails: {event.error.message}")
            yield event
        raise EngineError(f"{self._url} ends the stream before its [DONE]")

    async def _line(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readline()
        except (ValueError, HttpProcessingError):  # the one of older, the other of newer aiohttp
            raise EngineError(f"{self._url} sends an event of more than {_LINE_BYTES} bytes") from None

    async def _check_status(self, response: aiohttp.ClientResponse) -> None:
        """Raise for a reply that is a refusal (4xx) or a failure."""
        if response.status == 200:
            return
        try:
            error = msgspec.json.decode(await response.read(), type=_Failure).error
        except msgspec.DecodeError:
            error = _Error(response.reason or "no reason given")
        hint = " (--api-key or $RINGPOST_API_KEY)" if response.status == 401 else ""
        message = f"{self._url} answers {response.status}: {error.message}{hint}"
        if response.status < 500:
            raise ParameterError(message, error.param or "", error.code if isinstance(error.code, str) else None)
        raise EngineError(message)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one line what goes wrong with the connection."""
        try:
            yield
        except (aiohttp.InvalidURL, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ValueError(f"{self._url} cannot be reached: {_reason(error)}") from None
        except aiohttp.ClientError as error:
            raise EngineError(f"{self._url} breaks the connection: {_reason(error)}") from None


def _reason(error: aiohttp.ClientError) -> str:
    """The system's own words where it is an error of the system."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error) or type(error).__name__
