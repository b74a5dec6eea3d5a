"""What one call has got so far: its prompts, and the answers to each."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from msgspec import UNSET

from ..frontend.logprobs import PromptLogprobs
from ..frontend.outputs import CompletionOutput, RequestOutput
from .responses import CompletionLogprobs, PromptTokensDetails, Spelled, Usage


@dataclass(slots=True)
class PromptState:
    """A prompt as the engine has read it."""

    token_ids: list[int]
    logprobs: PromptLogprobs | None
    num_cached: int
    # What each choice, or the first event of each, tells of it; made once for all of them.
    text: str = ""  # with `echo`
    echoed: CompletionLogprobs | None = None  # the same with logprobs
    spelled: Spelled = UNSET
    choices: dict[int, "Choice"] = field(default_factory=dict)  # the answers to it, by their index in the engine

    @classmethod
    def of(cls, output: RequestOutput) -> Self:
        """By the first output about it."""
        return cls(output.prompt_token_ids, output.prompt_logprobs, output.num_cached_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(choice.num_tokens for choice in self.choices.values())


@dataclass(slots=True)
class Choice:
    """An answer on its way to the client."""

    index: int  # among all choices of the reply
    prompt: PromptState
    begun: bool = False  # whether an event has told something of it
    num_tokens: int = 0
    offset: int = 0  # characters of its tokens so far


@dataclass(slots=True)
class News:
    """What is new in a choice: everything, where nothing is streamed."""

    choice: Choice
    completion: CompletionOutput


def usage_of(prompts: Iterable[PromptState], num_tokens: int) -> Usage:
    """The usage of these prompts and so many tokens in answer. A prompt counts once, however many answers it has."""
    prompts = list(prompts)
    count = sum(len(prompt.token_ids) for prompt in prompts)
    cached = sum(prompt.num_cached for prompt in prompts)
    return Usage(count, num_tokens, count + num_tokens, PromptTokensDetails(cached))
