"""What a realtime session is set to, and what one response is asked for besides."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Self, TypeAlias

import msgspec

from ...ipc.messages.errors import ParameterError
from .sampling_fields import SamplingFields

Mode: TypeAlias = Literal["chat", "text"]
MODES: tuple[Mode, ...] = ("chat", "text")  # by the model's template; texts one behind the other
MODALITIES = ["text"]
NO_LIMIT = "inf"
CONVERSATION = "conversation"  # what errors call all that the model is to read


def checked_mode(given: str, field: str) -> Mode:
    """One of MODES. Raises ParameterError."""
    if given not in MODES:
        raise ParameterError(f'{field} must be "chat" or "text", got {given!r:.100}', field)
    return given


class TurnFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """What can be said of a session, and of one response. What OpenAI has and this server lacks may only ask for nothing."""

    instructions: str | None = None
    output_modalities: list[str] | None = None
    max_output_tokens: int | str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None

    default_max_tokens: ClassVar[int | None] = None  # the answer may fill the context
    theirs: ClassVar[dict[str, str]] = SamplingFields.theirs | {
        "max_tokens": "max_output_tokens",
        "prompt": CONVERSATION,
        "messages": CONVERSATION,
    }

    def check(self, place: str) -> None:
        """Raise ParameterError for what this server does not do; `place` is where the fields stand."""
        if self.output_modalities not in (None, MODALITIES):
            raise _unlike(place, "output_modalities", MODALITIES, self.output_modalities)
        limit = self.max_output_tokens
        if (isinstance(limit, str) and limit != NO_LIMIT) or (isinstance(limit, int) and limit < 1):
            message = f'{place}.max_output_tokens must be an integer of at least 1, or "{NO_LIMIT}"'
            raise ParameterError(f"{message}, got {limit!r:.100}", f"{place}.max_output_tokens")
        if self.tools:
            raise _unlike(place, "tools", [], self.tools)
        if self.tool_choice not in (None, "auto", "none"):
            raise _unlike(place, "tool_choice", "auto", self.tool_choice)

    @contextmanager
    def named(self, place: str) -> Iterator[None]:
        """A ParameterError from inside the block names the field as the client does, and its place."""
        try:
            with self.in_their_words():
                yield
        except ParameterError as error:
            field = error.parameter or ""
            if field == CONVERSATION or field.partition(".")[0] not in self.__struct_fields__:
                raise
            text = f"{place}.{error}" if str(error).startswith(field) else str(error)
            raise ParameterError(text, f"{place}.{field}", error.code) from None

    def _own_params(self) -> dict[str, Any]:
        if self.max_output_tokens is None:
            return {}
        return {"max_tokens": None if self.max_output_tokens == NO_LIMIT else self.max_output_tokens}


class SessionFields(TurnFields, kw_only=True):
    """What session.update holds, and what a session is set to."""

    type: str | None = None
    model: str | None = None
    mode: str | None = None
    truncation: Any = None

    def check(self, place: str) -> None:
        """See TurnFields."""
        super().check(place)
        if self.type not in (None, "realtime"):
            raise _unlike(place, "type", "realtime", self.type)
        if self.truncation not in (None, "disabled"):
            raise _unlike(place, "truncation", "disabled", self.truncation)
        if self.mode is not None:
            checked_mode(self.mode, f"{place}.mode")

    def with_changes(self, given: TurnFields) -> Self:
        """The same, but for what `given` says. Raises ParameterError for instructions that have no template to stand in."""
        changes = {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not None}
        known = {name: value for name, value in changes.items() if name in self.__struct_fields__}
        changed = msgspec.structs.replace(self, **known)
        if changed.mode == "text" and changed.instructions:
            message = "instructions must be empty in mode text, which has no template for them"
            raise ParameterError(f"{message}, got {changed.instructions!r:.100}", "instructions")
        return changed

    def shown(self) -> dict[str, Any]:
        """As events tell it: what is set."""
        told = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        fixed = {"type": "realtime", "object": "realtime.session", "output_modalities": MODALITIES}
        return {"instructions": "", "max_output_tokens": NO_LIMIT, **told, **fixed}


class ResponseFields(TurnFields, kw_only=True):
    """What response.create may hold: it goes for this response alone."""

    conversation: str | None = None
    input: list[Any] | None = None
    metadata: dict[str, str] | None = None

    def check(self, place: str) -> None:
        """See TurnFields."""
        super().check(place)
        if self.conversation not in (None, "auto"):
            raise _unlike(place, "conversation", "auto", self.conversation)
        if self.input is not None:
            message = f"{place}.input is not supported yet: leave it out, and create items"
            raise ParameterError(message, f"{place}.input")


def _unlike(place: str, field: str, only: Any, given: Any) -> ParameterError:
    """The error of a field that may have one value."""
    right, wrong = (msgspec.json.encode(value).decode() for value in (only, given))
    return ParameterError(f"{place}.{field} is not supported yet: it may only be {right}, got {wrong:.100}", f"{place}.{field}")
