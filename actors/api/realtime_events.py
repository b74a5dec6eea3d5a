"""The events that a realtime client may send. Names and forms are those of OpenAI's Realtime API, with text for sound."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...ipc.messages.errors import ParameterError
from .errors import ApiError
from .realtime_settings import ResponseFields, SessionFields
from .validation import decode_body

Id = Annotated[str, Meta(min_length=1, max_length=512)]
_WHAT = "the event"


class Envelope(msgspec.Struct):
    """What every event holds."""

    type: str
    event_id: Id | None = None


class ClientEvent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the events."""

    type: str
    event_id: Id | None = None


class SessionUpdate(ClientEvent, kw_only=True):
    """Set what is named anew; the rest stays."""

    session: SessionFields


class ContentFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of an item."""

    type: str
    text: str | None = None


class ItemFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An item as the client makes it."""

    type: str
    role: str
    content: list[ContentFields]
    id: Id | None = None
    object: Any = None  # what an item that was sent to a client holds besides
    status: Any = None


class ItemCreate(ClientEvent, kw_only=True):
    """Add an item, at the end or behind another one."""

    item: ItemFields
    previous_item_id: str | None = None


class ItemRetrieve(ClientEvent, kw_only=True):
    """Ask for an item."""

    item_id: str


class ItemDelete(ClientEvent, kw_only=True):
    """Take an item out of the conversation."""

    item_id: str


class ItemTruncate(ClientEvent, kw_only=True):
    """Keep the beginning of an answer: what its reader has seen or heard."""

    item_id: str
    content_index: int
    text_end: int  # characters kept


class BufferAppend(ClientEvent, kw_only=True):
    """Add text to the input that is not yet an item."""

    text: str


class BufferCommit(ClientEvent, kw_only=True):
    """Make the input an item."""


class BufferClear(ClientEvent, kw_only=True):
    """Forget the input."""


class ResponseCreate(ClientEvent, kw_only=True):
    """Have the conversation answered."""

    response: ResponseFields | None = None


class ResponseCancel(ClientEvent, kw_only=True):
    """Stop the answer."""

    response_id: str | None = None


_KINDS: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.delete": ItemDelete,
    "conversation.item.truncate": ItemTruncate,
    "input_text_buffer.append": BufferAppend,
    "input_text_buffer.commit": BufferCommit,
    "input_text_buffer.clear": BufferClear,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}


def read_envelope(message: bytes) -> Envelope:
    """Type and id of an event. Raises ApiError or ParameterError for what is none, RecursionError for one nested too deeply."""
    return decode_body(message, Envelope, _WHAT)


def read_event(message: bytes, kind: str) -> ClientEvent:
    """The event of this type. Raises ParameterError for a type that is not known, and for a wrong field."""
    known = _KINDS.get(kind)
    if known is None:
        raise _unknown(kind)
    return decode_body(message, known, _WHAT)


def _unknown(kind: str) -> Exception:
    if "audio" in kind:
        of_text = kind.replace("audio", "text")
        right = of_text if of_text in _KINDS else f"one of {', '.join(_KINDS)}"
        rule = f"type must be {right}: this server takes text only"
    elif kind.startswith(("session.", "transcription_session.")):
        rule = "type must be session.update: a connection is one session, which exists from its beginning to its end"
    else:
        rule = f"type must be one of {', '.join(_KINDS)}"
    return ParameterError(f"{rule}; got {kind!r:.100}", "type")


def no_text_frame() -> ApiError:
    """The error of a binary message."""
    return ApiError(400, "events must be sent as text messages of JSON, got a binary message")
