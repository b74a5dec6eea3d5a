"""What goes wrong, as a client sees it: the one table from exceptions to HTTP statuses, and OpenAI's error body."""

from http import HTTPStatus

import msgspec
from aiohttp import web

from ...ipc.messages.errors import ParameterError
from ..errors import (
    EngineDeadError,
    EngineError,
    EngineHungError,
    EngineRecoveringError,
    EngineStartError,
    SessionTimeout,
    TooManySessions,
)
from ..logs import logger

_INVALID, _OURS, _BUSY = "invalid_request_error", "server_error", "service_unavailable_error"


class ApiError(Exception):
    """A refusal that only the HTTP layer knows: of the route, the model's name, the key or the body."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class Overloaded(EngineError):
    """As many requests wait as may wait. Trying again later helps."""


class ServerStopping(EngineError):
    """The server finishes what it has begun and takes nothing new."""


class ErrorInfo(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """Body of a failed reply, and an event in a stream that fails."""

    error: ErrorInfo


# In this order; the first that fits counts. A ParameterError is 400, ApiError and aiohttp's own errors have their status.
_STATUSES: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (Overloaded, 503, _BUSY, "overloaded"),
    (ServerStopping, 503, _BUSY, "shutting_down"),
    (TooManySessions, 503, _BUSY, "too_many_sessions"),
    (SessionTimeout, 408, _INVALID, "session_timeout"),
    (EngineDeadError, 503, _BUSY, "engine_dead"),
    (EngineRecoveringError, 503, _BUSY, "engine_recovering"),
    (EngineHungError, 503, _BUSY, "engine_hung"),
    (EngineStartError, 503, _BUSY, "engine_not_ready"),
    (EngineError, 500, _OURS, None),
)


def describe_error(error: Exception) -> tuple[int, ErrorBody]:
    """HTTP status and body for an exception. An unexpected one is logged, and its text stays here."""
    message = str(error)
    if isinstance(error, ApiError):
        kind = _INVALID if error.status < 500 else _OURS
        return error.status, ErrorBody(ErrorInfo(message, kind, error.param, error.code))
    if isinstance(error, web.HTTPException):
        kind = _INVALID if error.status < 500 else _OURS
        return error.status, ErrorBody(ErrorInfo(error.reason, kind))
    if isinstance(error, ParameterError):
        return 400, ErrorBody(ErrorInfo(message, _INVALID, error.parameter, error.code))
    for expected, status, kind, code in _STATUSES:
        if isinstance(error, expected):
            return status, ErrorBody(ErrorInfo(message, kind, None, code))
    logger.error("a request failed in the server", exc_info=error)
    return 500, ErrorBody(ErrorInfo("internal server error; the server's log has its cause", _OURS))


def json_response(content: msgspec.Struct, status: int = 200) -> web.Response:
    """A reply with this content."""
    return web.Response(status=status, body=msgspec.json.encode(content), content_type="application/json")


def error_response(error: Exception) -> web.Response:
    """The reply for an exception that was raised before anything was sent."""
    status, body = describe_error(error)
    response = json_response(body, status)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = "1"
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, web.HTTPMethodNotAllowed):
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    return response
