"""A client of a running server: answers whole and streamed, refusals, sockets closed early, and the server's numbers."""

import asyncio
import io
import json
import math
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
_NO_LINGER = struct.pack("ii", 1, 0)  # closing sends a reset

Json: TypeAlias = dict[str, Any]
Body: TypeAlias = Json | bytes


@dataclass
class Choice:
    """One answer, whole or put together from events."""

    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)  # where return_token_ids asks for them

    def add(self, part: Json) -> None:
        assert self.finish_reason is None, f"a choice goes on after its end: {part}"
        content = part.get("message") or part.get("delta") or {}
        self.text += part.get("text") or content.get("content") or ""
        self.finish_reason = part["finish_reason"]
        self.token_ids += part.get("token_ids") or []


class Answer:
    """A reply, or the events of a stream, by choices."""

    def __init__(self, events: list[Json]) -> None:
        self.events = events
        self.choices: dict[int, Choice] = {}
        self.usage: Json | None = None
        for event in events:
            assert "error" not in event, event
            self.usage = event.get("usage") or self.usage
            for part in event["choices"]:
                self.choices.setdefault(part["index"], Choice()).add(part)
        assert all(choice.finish_reason for choice in self.choices.values()), "a choice has no end"

    @property
    def first(self) -> Choice:
        """The only choice, mostly."""
        return self.choices[0]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, by the usage."""
        assert self.usage is not None
        return int(self.usage["prompt_tokens"])

    @property
    def completion_tokens(self) -> int:
        """Tokens generated, by the usage."""
        assert self.usage is not None
        return int(self.usage["completion_tokens"])


class Metrics:
    """One scrape of the server's numbers."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self._samples = [sample for family in families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of a metric over all samples with these labels; NaN, which equals nothing, for one that is not there."""
        values = [(sample.labels, sample.value) for sample in self._samples if sample.name == name]
        return sum(value for given, value in values if labels.items() <= given.items()) if values else math.nan

    def counters(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """All numbers that only grow."""
        growing = [sample for sample in self._samples if sample.name.endswith(("_total", "_count", "_bucket", "_sum"))]
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in growing}

    @property
    def load(self) -> tuple[float, float, float]:
        """Requests running, requests waiting, share of the KV cache in use."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        running, waiting, usage = (self.value(f"ringpost:{name}") for name in names)
        return running, waiting, usage


class Client:
    """`async with Client(url) as client`. Each request has a connection of its own, so that none stays open afterwards."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._http = aiohttp.ClientSession(self.url, connector=connector)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()

    def _open(self, path: str, body: Body, headers: dict[str, str] | None) -> Any:
        kind = {"Content-Type": "application/json"}
        return self._http.post(path, data=io.BytesIO(_encode(body)), headers=kind | (headers or {}))

    async def post(self, path: str, body: Body, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Status and body of the reply."""
        async with self._open(path, body, headers) as reply:
            return reply.status, await reply.read()

    async def ask(self, path: str, body: Body, headers: dict[str, str] | None = None) -> Answer:
        """The answer to a request that must succeed."""
        status, content = await self.post(path, body, headers)
        assert status == 200, (status, content[:500])
        return Answer([json.loads(content)])

    async def refused(self, path: str, body: Body) -> Json:
        """The error of a request that must be refused."""
        status, content = await self.post(path, body)
        assert status == 400, (status, content[:500])
        assert len(content) < 1000
        error: Json = json.loads(content)["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"
        assert "Traceback" not in error["message"]
        return error

    async def stream(
        self, path: str, body: Json, each: Callable[[Json], object] | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """The answer, streamed; `each` is called with every event as it comes."""
        events: list[Json] = []
        async with self._open(path, {**body, "stream": True}, headers) as reply:
            assert reply.status == 200, (reply.status, await reply.read())
            async for line in reply.content:
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return Answer(events)
                if data:
                    events.append(json.loads(data))
                    if each is not None:
                        each(events[-1])
        raise AssertionError("the stream ended without [DONE]")

    async def both(self, path: str, body: Json) -> tuple[Answer, Answer]:
        """The answer whole and streamed."""
        options = {"stream_options": {"include_usage": True}}
        return await self.ask(path, body), await self.stream(path, body | options)

    @asynccontextmanager
    async def sent(
        self, path: str, body: Json, *, reset: bool = False, little_room: bool = False
    ) -> AsyncIterator[asyncio.StreamReader]:
        """A request on a socket of its own, which is closed where the block ends: in order, or by a reset.

        With `little_room`, the server soon has to wait when nobody reads.
        """
        where = urlsplit(self.url)
        connected = socket.socket()
        if little_room:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            # Else a segment of the loopback is larger than the window, and the kernel waits for a timer at each.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, (where.hostname, where.port))
        reader, writer = await asyncio.open_connection(sock=connected)
        try:
            content = _encode(body)
            head = f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            yield reader
        finally:
            if reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def leave_after(self, events: int, path: str, body: Json, *, reset: bool = False) -> None:
        """Begin a stream, and close the socket after so many events."""
        async with self.sent(path, {**body, "stream": True}, reset=reset) as reader:
            for _ in range(events):
                await reader.readuntil(b"data: ")

    async def health(self) -> Json | None:
        """The error of /health; None while it is well."""
        async with self._http.get("/health") as reply:
            content = await reply.read()
            assert (reply.status, bool(content)) in ((200, False), (503, True)), (reply.status, content[:500])
            return json.loads(content)["error"] if content else None

    async def metrics(self) -> Metrics:
        """A scrape."""
        async with self._http.get("/metrics") as reply:
            assert reply.status == 200
            return Metrics(await reply.text())

    async def until(self, settled: Callable[[Metrics], bool]) -> Metrics:
        """The first scrape that is so; the test's watchdog ends a wait that is in vain."""
        while not settled(scrape := await self.metrics()):
            pass
        return scrape

    async def idle(self) -> Metrics:
        """The first scrape in which no request runs, waits or holds a block."""
        return await self.until(lambda scrape: scrape.load == (0, 0, 0))


def joined(parts: list[Json | None]) -> Json:
    """The logprobs of several events as those of one choice: their lists, one after the other."""
    known = [part for part in parts if part is not None]
    return {name: [entry for part in known for entry in part[name]] for name in known[0]}


def _encode(body: Body) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()
