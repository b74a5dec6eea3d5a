"""One call of a generating route: its checked body, and what the server decides about it."""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

from ...ipc.messages.errors import ParameterError
from .errors import ApiError, json_response
from .not_offered import check_offered
from .protocol import GenerationRequest
from .state import STATE, ApiState
from .validation import decode_body, read_body

Body = TypeVar("Body", bound=GenerationRequest)
T = TypeVar("T")
R = TypeVar("R")

REQUEST_ID = "X-Request-Id"
MAX_REQUEST_ID = 256  # characters


@dataclass(frozen=True, slots=True)
class Call(Generic[Body]):
    """A call that may go to the engine."""

    state: ApiState
    body: Body
    model: str  # the name to answer by
    request_id: str  # the client's, or a random one; need not be unique

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The model's own sampling parameters, for what the request leaves out."""
        return self.state.default_sampling_params

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with an event about usage."""
        return self.body.stream_options is not None and bool(self.body.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether each event of the stream tells the usage so far."""
        return self.include_usage and bool(self.body.stream_options and self.body.stream_options.continuous_usage_stats)

    @property
    def wants_every_token(self) -> bool:
        """Whether an event tells something even when it completes no character."""
        return bool(self.body.return_token_ids) or self.continuous_usage

    def reply(self, content: msgspec.Struct) -> web.Response:
        """The reply to a call that is not streamed."""
        response = json_response(content)
        response.headers[REQUEST_ID] = self.request_id
        return response


async def receive_call(request: web.Request, kind: type[Body]) -> Call[Body]:
    """Read and check a request's body. Raises ApiError or ParameterError."""
    state = request.app[STATE]
    content = await read_body(request, state.config.max_body_bytes)
    try:
        body = decode_body(content, kind)
        check_offered(content, kind.__struct_fields__)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    body.check()
    model = state.model_name(body.model)
    state.require_room(1)  # before anything is rendered for a call that finds none
    return Call(state, body, model, request_id_in(request) or _checked_id(body.request_id) or uuid.uuid4().hex)


async def in_turns(make: Callable[[T], R], parts: Iterable[T]) -> list[R]:
    """What is to be made of each part; other calls get their turn behind each."""
    made = []
    for part in parts:
        made.append(make(part))
        await asyncio.sleep(0)
    return made


def request_id_in(request: web.Request) -> str | None:
    """The id in the request's header; one that could not go back in a header counts as none."""
    given = request.headers.get(REQUEST_ID)
    return given if given is not None and _usable(given) else None


def _checked_id(given: str | None) -> str | None:
    if given is not None and not _usable(given):
        wanted = f"request_id must have 1 to {MAX_REQUEST_ID} printable characters"
        raise ParameterError(f"{wanted}, got {len(given)}: {given!r:.100}", "request_id")
    return given


def _usable(given: str) -> bool:
    return 1 <= len(given) <= MAX_REQUEST_ID and given.isprintable()
