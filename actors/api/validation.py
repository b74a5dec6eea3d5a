"""From the bytes of a request to a checked Struct. Everything wrong with a body's form is said here."""

import asyncio
import re
from functools import cache
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ...ipc.messages.errors import ParameterError
from .errors import ApiError

T = TypeVar("T", bound=msgspec.Struct)

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_NAMES = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_SHOWN = 100  # bytes of a wrong value
_BODY_SECONDS = 60.0  # that a client may take to send a body
fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw])


async def read_body(request: web.Request, limit: int) -> bytes:
    """The body, at most `limit` bytes of it; `application/json` in UTF-8. Raises ApiError."""
    if request.content_type != "application/json":
        sent = request.headers.get("Content-Type", "none")
        raise ApiError(415, f"Content-Type must be application/json, got {sent!r:.100}")
    if (request.content_length or 0) > limit:
        raise _too_large(f"{request.content_length} bytes", limit)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.content.iter_any():
                body += part
                if len(body) > limit:
                    raise _too_large("more", limit)
    except TimeoutError:
        raise ApiError(408, f"the body must be sent within {_BODY_SECONDS:g} s, got {len(body)} bytes of it") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise ApiError(400, f"the body cannot be read: {error}") from None
    return bytes(body)


def _too_large(size: str, limit: int) -> ApiError:
    return ApiError(413, f"the body may have at most {limit} bytes, got {size}", code="body_too_large")


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode_body(body: bytes, kind: type[T], what: str = "the body") -> T:
    """The body as a Struct. Raises ParameterError naming field and value, or ApiError where it is not even JSON.

    A reply stays small whatever was sent: only the first mistake is told, and a value is cut. RecursionError passes through.
    `what` is what the client calls it.
    """
    try:
        body.decode()  # msgspec does not look into fields that the Struct lacks
        struct: T = _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise _explained(body, str(error), what) from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"{what} is not valid UTF-8: byte {body[error.start]:#x} at {error.start}") from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"{what} is not valid JSON: {error}") from None
    return struct


def shown(value: msgspec.Raw) -> str:
    """A value as the client wrote it, cut."""
    return bytes(memoryview(value)[:_SHOWN]).decode(errors="ignore")


def _explained(body: bytes, text: str, what: str) -> Exception:
    """msgspec's complaint with the name of the field in the client's terms, and its value."""
    complaint, _, place = text.partition(" - at `")
    path = place.removesuffix("`")
    field = path.removeprefix("$").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", complaint):
        field = f"{field}.{missing[1]}" if field else missing[1]
        return ParameterError(f"{field} is required", field)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", complaint, re.DOTALL):
        name = f"{field}.{unknown[1]}" if field else unknown[1]
        return ParameterError(f"{name:.{_SHOWN}} is not known here: leave it out", name[:_SHOWN], "unknown_parameter")
    value = shown(_value_at(msgspec.Raw(body), path))
    if not field:
        return ApiError(400, f"{what} must be an object, got {value}")
    return ParameterError(f"{field} {_rule(complaint)}, got {value}", field.removesuffix("[...]"))


def _rule(complaint: str) -> str:
    """What would be right, or what is wrong."""
    if wanted := re.fullmatch(r"Expected `(.*)`, got `.*`", complaint):
        return "must be " + " or ".join(_NAMES.get(name, name) for name in wanted[1].split(" | "))
    if complaint.startswith("Invalid value"):
        return 'must be "text"'  # the one part of a message there is
    return f"is wrong ({complaint})"


def _value_at(value: msgspec.Raw, path: str) -> msgspec.Raw:
    """The value that msgspec's path names, or the innermost one that can be named; nothing else is decoded."""
    for step in _STEP.finditer(path):
        try:
            value = fields_of(value)[step[1]] if step[1] else _items.decode(value)[int(step[2])]
        except (KeyError, IndexError, msgspec.DecodeError):
            break
    return value
