"""What a client may ask about the choice of tokens, on every route alike, and its way to the engine's form."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import RequestOutputKind, SamplingParams

_ENGINES = frozenset(SamplingParams.__struct_fields__)


class SamplingFields(msgspec.Struct, kw_only=True):
    """What all routes take. `null` is like leaving a field out; the engine checks ranges.

    A field with the name of one of SamplingParams is handed on as it is.
    """

    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    repetition_detection: dict[str, Any] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stream_interval: int | None = None
    vllm_xargs: dict[str, Any] | None = None

    default_max_tokens: ClassVar[int | None]  # where neither the request nor the model says anything
    theirs: ClassVar[dict[str, str]] = {"extra_args": "vllm_xargs"}  # what the client calls the engine's fields

    @property
    def output_kind(self) -> RequestOutputKind:
        """What the route makes of outputs."""
        return RequestOutputKind.DELTA

    def params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """The engine's form, with the model's own `defaults` for what is left out. Raises ParameterError for a value out of
        range, by the engine's name of the field.
        """
        handed_on = (name for name in self.__struct_fields__ if name in _ENGINES)
        given = {name: value for name in handed_on if (value := getattr(self, name)) is not None}
        settings = {"max_tokens": self.default_max_tokens} | dict(defaults) | given | self._own_params()
        return SamplingParams(**settings, extra_args=self.vllm_xargs, output_kind=self.output_kind)

    def _own_params(self) -> dict[str, Any]:
        """What the route's own fields ask for."""
        return {}

    @contextmanager
    def in_their_words(self) -> Iterator[None]:
        """A ParameterError from inside the block names the field as the client does."""
        try:
            yield
        except ParameterError as error:
            ours = error.parameter or ""
            theirs = self._their_name(ours)
            if theirs == ours:
                raise
            text = str(error)
            text = theirs + text.removeprefix(ours) if text.startswith(f"{ours} must ") else text
            raise ParameterError(text, theirs, error.code) from None

    def _their_name(self, field: str) -> str:
        return self.theirs.get(field, field)
