"""The conversation of one realtime session: its items, and the input that is not yet one."""

import io
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...ipc.messages.errors import ParameterError
from .errors import ApiError
from .realtime_events import ContentFields, ItemFields

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]

ROLES = ("user", "system", "assistant")
_PARTS = ("input_text", "output_text", "text")
_ITEM_BYTES = 256  # that an item counts besides its text, so that there is no end of empty ones
_FIRST = "root"  # in the place of an item's id: before all items


def new_id(kind: str) -> str:
    """A random id, as in `item_...`."""
    return f"{kind}_{uuid.uuid4().hex[:24]}"


@dataclass(slots=True, eq=False)
class Item:
    """A message of the conversation."""

    id: str
    role: str
    texts: list[str]  # one for each part of its content
    status: Status = "completed"
    token_ids: list[int] | None = None  # of its text in mode text; None where nobody knows them

    @property
    def size(self) -> int:
        """Bytes that it counts."""
        return _ITEM_BYTES + sum(map(_bytes_in, self.texts))

    def shown(self) -> dict[str, Any]:
        """As events tell it."""
        kind = "output_text" if self.role == "assistant" else "input_text"
        content = [{"type": kind, "text": text} for text in self.texts]
        own = {"id": self.id, "object": "realtime.item", "type": "message"}
        return own | {"status": self.status, "role": self.role, "content": content}


def made_item(given: ItemFields) -> Item:
    """The item that a client asks for. Raises ParameterError."""
    if given.type != "message":
        raise ParameterError(f'item.type must be "message", got {given.type!r:.100}', "item.type")
    if given.role not in ROLES:
        raise ParameterError(f"item.role must be one of {', '.join(ROLES)}, got {given.role!r:.100}", "item.role")
    if not given.content:
        raise ParameterError("item.content must hold at least one part, got []", "item.content")
    texts = [_text_of(part, f"item.content[{index}]") for index, part in enumerate(given.content)]
    return Item(given.id or new_id("item"), given.role, texts)


def _text_of(part: ContentFields, place: str) -> str:
    if part.type not in _PARTS:
        raise ParameterError(f"{place}.type must be one of {', '.join(_PARTS)}, got {part.type!r:.100}", f"{place}.type")
    if part.text is None:
        raise ParameterError(f"{place}.text is required", f"{place}.text")
    return part.text


class Conversation:
    """Items in order. All count against a limit; only the text of an answer, which the context limits, may go beyond it."""

    def __init__(self, max_bytes: int) -> None:
        self.items: list[Item] = []
        self._max_bytes = max_bytes
        self._size = 0  # of items and input
        self._input = io.StringIO()

    def item(self, item_id: str) -> Item:
        """One of the items. Raises ApiError where there is none of this id."""
        return self.items[self._place(item_id, "item_id")]

    def previous(self, item: Item) -> str | None:
        """The id of the item before."""
        index = self.items.index(item)
        return self.items[index - 1].id if index else None

    def add(self, item: Item, behind: str | None = None) -> None:
        """Put in an item of the client's, at the end or behind another one. Raises ParameterError or ApiError."""
        if any(known.id == item.id for known in self.items):
            raise ParameterError(f"item.id must be new, got {item.id!r:.100}, which the conversation holds", "item.id")
        index = len(self.items) if behind is None else 0
        if behind not in (None, _FIRST):
            index = self._place(behind, "previous_item_id") + 1
        self._count(item.size)
        self._forget_first(index)
        self.items.insert(index, item)

    def add_answer(self, item: Item) -> None:
        """Put in, at the end, the item that an answer goes into, still without text. Raises ApiError."""
        self._count(item.size)
        self.items.append(item)

    def answered(self, item: Item) -> None:
        """Count the text of an answer that has come to its end."""
        self._size += item.size - _ITEM_BYTES

    def drop_answer(self, item: Item) -> None:
        """Take out the item of an answer that has not begun."""
        self.items.remove(item)
        self._size -= item.size

    def delete(self, item_id: str) -> None:
        """Take out an item. Raises ApiError."""
        index = self._place(item_id, "item_id")
        item = self.items[index]
        _require_complete(item)
        del self.items[index]
        self._size -= item.size
        self._forget_first(index)

    def truncate(self, item_id: str, content_index: int, text_end: int) -> None:
        """Keep the first `text_end` characters of an answer. Raises ApiError or ParameterError."""
        item = self.item(item_id)
        if item.role != "assistant":
            raise ParameterError(f"item_id must be that of an answer, got {item_id!r:.100}, of role {item.role}", "item_id")
        _require_complete(item)
        if not 0 <= content_index < len(item.texts):
            rule = f"content_index must be from 0 to {len(item.texts) - 1}"
            raise ParameterError(f"{rule}, got {content_index}", "content_index")
        text = item.texts[content_index]
        if not 0 <= text_end <= len(text):
            rule = f"text_end must be from 0 to {len(text)}, the characters that there are"
            raise ParameterError(f"{rule}, got {text_end}", "text_end")
        if text_end == len(text):
            return
        self._size -= item.size
        item.texts[content_index] = text[:text_end]
        item.status, item.token_ids = "incomplete", None
        self._size += item.size

    def append_input(self, text: str) -> None:
        """Add to the input. Raises ApiError where that is too much."""
        self._count(_bytes_in(text))
        self._input.write(text)

    def clear_input(self) -> None:
        """Forget the input."""
        self._size -= _bytes_in(self._input.getvalue())
        self._input = io.StringIO()

    def commit_input(self) -> Item:
        """Make the input an item of the user's, at the end. Raises ApiError where there is none."""
        text = self._input.getvalue()
        if not text:
            message = "input_text_buffer must hold text before it is committed, got none"
            raise ApiError(400, message, code="input_text_buffer_commit_empty")
        self._count(_ITEM_BYTES)
        item = Item(new_id("item"), "user", [text])
        self._input = io.StringIO()
        self.items.append(item)
        return item

    def messages(self, instructions: str | None) -> list[dict[str, Any]]:
        """The conversation for a chat template; an answer that was stopped before its first character is left out."""
        said: Sequence[Item] = [item for item in self.items if item.status == "completed" or any(item.texts)]
        system = [{"role": "system", "content": instructions}] if instructions else []
        return system + [{"role": item.role, "content": "\n".join(item.texts)} for item in said]

    def _place(self, item_id: str | None, field: str) -> int:
        for index, item in enumerate(self.items):
            if item.id == item_id:
                return index
        message = f"{field} must be the id of an item of the conversation, got {item_id!r:.100}"
        raise ApiError(400, message, param=field, code="item_not_found")

    def _count(self, added: int) -> None:
        if self._size + added > self._max_bytes:
            held = f"it holds {self._size}, and {added} more would be too many; delete items"
            message = f"the conversation may have at most {self._max_bytes} bytes: {held}"
            raise ApiError(400, message, code="conversation_too_large")
        self._size += added

    def _forget_first(self, changed: int) -> None:
        """A text that becomes the first, or is so no more, has other tokens: those that begin a sequence stand before it."""
        if changed == 0 and self.items:
            self.items[0].token_ids = None


def _require_complete(item: Item) -> None:
    if item.status == "in_progress":
        message = f"item_id must be that of a whole item, got {item.id!r:.100}, which is being made; cancel the response first"
        raise ParameterError(message, "item_id")


def _bytes_in(text: str) -> int:
    return len(text.encode())
