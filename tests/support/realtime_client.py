"""A client of /v1/realtime: sends events, and reads those that come."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from api_client import Json

REALTIME = "/v1/realtime"


class RealtimeClient:
    """One connection. Events come in order, each with an id of its own."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.session: Json = {}  # as the server has told it in the beginning
        self._ids: set[str] = set()

    async def send(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        await self.socket.send_json({"type": kind, **fields})

    async def next(self, kind: str | None = None) -> Json:
        """The next event, which must be of this type."""
        event: Json = await self.socket.receive_json()
        assert event["event_id"] not in self._ids
        self._ids.add(event["event_id"])
        assert kind in (None, event["type"]), event
        return event

    async def until(self, kind: str) -> list[Json]:
        """Events up to the first of this type; none of them an error, if that is another type."""
        events = [await self.next()]
        while events[-1]["type"] != kind:
            assert events[-1]["type"] != "error", events[-1]
            events.append(await self.next())
        return events

    async def ask(self, kind: str, **fields: Any) -> Json:
        """Send an event and return the next one that comes."""
        await self.send(kind, **fields)
        return await self.next()

    async def refused(self, kind: str, **fields: Any) -> Json:
        """Send an event that must be refused; its error."""
        event = await self.ask(kind, event_id="mine", **fields)
        assert event["type"] == "error", event
        error: Json = event["error"]
        assert error.pop("event_id") == "mine"
        assert error.keys() == {"type", "code", "message", "param"}
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) < 1000
        return error

    async def say(self, text: str, role: str = "user", **fields: Any) -> str:
        """Add an item; its id."""
        item = {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
        added = await self.ask("conversation.item.create", item=item, **fields)
        assert added["type"] == "conversation.item.added", added
        done = await self.next("conversation.item.done")
        assert done["item"] == added["item"]
        return str(done["item"]["id"])

    async def respond(self, **fields: Any) -> Json:
        """Have the conversation answered; the finished response."""
        await self.send("response.create", response=fields)
        response: Json = (await self.until("response.done"))[-1]["response"]
        return response

    async def closed(self) -> int | None:
        """The code by which the server has closed the connection, when nothing else comes before."""
        message = await self.socket.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), message
        return self.socket.close_code


def text_of(response: Json) -> str:
    """What a finished response says."""
    (item,) = response["output"]
    (part,) = item["content"]
    return str(part["text"])


@asynccontextmanager
async def connected(url: str, query: str = "", **options: Any) -> AsyncIterator[RealtimeClient]:
    """A connection that has been told of its session."""
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}{REALTIME}{query}", **options) as socket:
        client = RealtimeClient(socket)
        client.session = (await client.next("session.created"))["session"]
        yield client
