"""From the bytes of a request to a checked Struct. Everything wrong with a body's form is said here."""

import re
from functools import cache
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ...ipc.messages.errors import ParameterError
from .errors import ApiError

T = TypeVar("T")

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_NAMES = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


async def read_body(request: web.Request, limit: int) -> bytes:
    """The body, at most `limit` bytes of it; `application/json` in UTF-8. Raises ApiError."""
    if request.content_type != "application/json" or "Content-Type" not in request.headers:
        sent = request.headers.get("Content-Type", "none")
        raise ApiError(415, f"Content-Type must be application/json, got {sent:.100}")
    if (request.content_length or 0) > limit:
        raise _too_large(f"{request.content_length} bytes", limit)
    body = bytearray()
    try:
        async for part in request.content.iter_any():
            body += part
            if len(body) > limit:
                raise _too_large("more", limit)
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise ApiError(400, f"the body cannot be read: {error}") from None
    return bytes(body)


def _too_large(size: str, limit: int) -> ApiError:
    return ApiError(413, f"the body may have at most {limit} bytes, got {size}", code="body_too_large")


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)


def decode_body(body: bytes, kind: type[T]) -> T:
    """The body as a Struct. Raises ParameterError naming field and value, or ApiError where it is not even JSON.

    A reply stays small whatever was sent: only the first mistake is told, and a value is cut.
    """
    try:
        body.decode()  # msgspec does not look into fields that the Struct lacks
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise _explained(body, str(error)) from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8: byte {body[error.start]:#x} at {error.start}") from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None


def _explained(body: bytes, text: str) -> ParameterError:
    """msgspec's complaint with the name of the field in the client's terms, and its value."""
    complaint, _, path = text.removesuffix("`").partition(" - at `")
    field = path.removeprefix("$").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", complaint):
        field = f"{field}.{missing[1]}" if field else missing[1]
        return ParameterError(f"{field} is required", field)
    wanted = re.fullmatch(r"Expected `(.*)`, got `.*`", complaint)
    rule = f"must be {_in_words(wanted[1])}" if wanted else f"is wrong ({complaint})"
    field = field or "the body"
    return ParameterError(f"{field} {rule}, got {_value_at(msgspec.json.decode(body), path)!r:.100}", field)


def _in_words(types: str) -> str:
    return " or ".join(_NAMES.get(name, name) for name in types.split(" | "))


def _value_at(value: Any, path: str) -> Any:
    """The value that msgspec's path names, or the innermost one that can be named."""
    for step in _STEP.finditer(path):
        key: Any = step[1] or int(step[2])
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            break
    return value
