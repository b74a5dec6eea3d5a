"""/v1/completions."""

from collections.abc import Sequence

from aiohttp import web
from msgspec import UNSET, UnsetType

from ..frontend.outputs import RequestOutput
from .answers import Answer
from .calls import receive_call
from .protocol import CompletionRequest
from .responses import Completion, CompletionChoice, Usage


async def completions(request: web.Request) -> web.StreamResponse:
    """Complete one or several prompts, streamed or not."""
    call = await receive_call(request, CompletionRequest)
    return await _Answer(call).reply(request, call.body.prompts(), call.body.params())


class _Answer(Answer[CompletionRequest]):
    id_prefix = "cmpl"

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> Completion:
        choices = [self._choice(index, output, first=True) for index, output in enumerate(outputs)]
        return self._completion(choices, usage)

    def event(self, index: int, output: RequestOutput, *, first: bool, usage: Usage | UnsetType | None) -> Completion:
        return self._completion([self._choice(index, output, first=first)], usage)

    def usage_event(self, usage: Usage) -> Completion:
        return self._completion([], usage)

    def _choice(self, index: int, output: RequestOutput, *, first: bool) -> CompletionChoice:
        """A choice, or what is new in it; the prompt's ids go with the first."""
        completion = output.outputs[0]
        return CompletionChoice(
            index=index,
            text=completion.text,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self.ids(completion.token_ids),
            prompt_token_ids=self.ids(output.prompt_token_ids) if first else UNSET,
        )

    def _completion(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.call.model, choices=choices, usage=usage)
