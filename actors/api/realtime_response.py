"""One response of a realtime session: what is known of it, and the events that tell it."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from ...ipc.messages.outputs import FinishReason
from ..frontend.outputs import RequestOutput
from .errors import ErrorInfo
from .realtime_conversation import Item, new_id
from .realtime_settings import MODALITIES, NO_LIMIT, SessionFields

Event: TypeAlias = dict[str, Any]
Outcome: TypeAlias = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]

_OUTCOMES: dict[FinishReason, tuple[Outcome, str | None]] = {
    "stop": ("completed", None),
    "repetition": ("completed", None),
    "length": ("incomplete", "max_output_tokens"),
    "interrupt": ("cancelled", "client_cancelled"),
}


def event(kind: str, **fields: Any) -> Event:
    """An event of the server's, with an id of its own."""
    return {"type": kind, "event_id": new_id("event"), **fields}


class Response:
    """An answer being made: it goes into one item of the conversation."""

    def __init__(self, settings: SessionFields, metadata: dict[str, str] | None, prompt_length: int) -> None:
        self.id = new_id("resp")
        self.item = Item(new_id("item"), "assistant", [""], "in_progress")
        self.prompt_length = prompt_length  # tokens
        self.announced = asyncio.Event()  # its client knows of it
        self.ended = asyncio.Event()
        self.token_ids: list[int] = []  # all that were told
        self._limit = settings.max_output_tokens or NO_LIMIT
        self._metadata = metadata
        self._status: Outcome = "in_progress"
        self._details: Event | None = None
        self._num_cached = 0
        self._place = {"response_id": self.id, "item_id": self.item.id, "output_index": 0, "content_index": 0}

    def opening(self, previous_item_id: str | None) -> list[Event]:
        """The events before the first text."""
        item = self.item.shown() | {"content": []}
        return [
            event("response.created", response=self._shown()),
            event("response.output_item.added", response_id=self.id, output_index=0, item=item),
            event("conversation.item.added", previous_item_id=previous_item_id, item=item),
            event("response.content_part.added", **self._place, part={"type": "text", "text": ""}),
        ]

    def take(self, output: RequestOutput) -> list[Event]:
        """The events about what an output brings; not those about the end."""
        self._num_cached = max(self._num_cached, output.num_cached_tokens)
        events = []
        for completion in output.outputs:
            self.token_ids += completion.token_ids
            if completion.text:
                self.item.texts[0] += completion.text
                events.append(event("response.output_text.delta", **self._place, delta=completion.text))
        return events

    def finish(self, reason: FinishReason | None) -> None:
        """It has ended in good order. Any other reason than those of a good end makes it a failure."""
        self._status, why = _OUTCOMES.get(reason or "error", ("failed", None))
        self._details = None if self._status == "completed" else {"type": self._status, "reason": why}
        self._close()

    def fail(self, error: ErrorInfo) -> None:
        """It has failed."""
        self._status = "failed"
        self._details = {"type": "failed", "error": {"type": error.type, "code": error.code, "message": error.message}}
        self._close()

    def _close(self) -> None:
        self.item.status = "completed" if self._status == "completed" else "incomplete"

    def closing(self, previous_item_id: str | None) -> list[Event]:
        """The events at the end; the last of them is response.done."""
        text, item = self.item.texts[0], self.item.shown()
        return [
            event("response.output_text.done", **self._place, text=text),
            event("response.content_part.done", **self._place, part={"type": "text", "text": text}),
            event("conversation.item.done", previous_item_id=previous_item_id, item=item),
            event("response.output_item.done", response_id=self.id, output_index=0, item=item),
            event("response.done", response=self._shown()),
        ]

    def _shown(self) -> Event:
        done = self._status != "in_progress"
        output: Sequence[Event] = [self.item.shown()] if done else []
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": self._status,
            "status_details": self._details,
            "output": output,
            "output_modalities": MODALITIES,
            "max_output_tokens": self._limit,
            "metadata": self._metadata,
            "usage": self._usage() if done else None,
        }

    def _usage(self) -> Event:
        return {
            "total_tokens": self.prompt_length + len(self.token_ids),
            "input_tokens": self.prompt_length,
            "output_tokens": len(self.token_ids),
            "input_token_details": {"cached_tokens": self._num_cached, "text_tokens": self.prompt_length},
            "output_token_details": {"text_tokens": len(self.token_ids)},
        }
