"""Submission: what every engine does with a request, from the caller's arguments to the message for the core."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.outputs import FinishReason
from ...ipc.messages.requests import AddRequest
from ...ipc.messages.sampling import SamplingParams
from .collector import RequestOutputCollector
from .input_processor import InputProcessor, Prompt
from .live_request import LiveRequest
from .output_processor import OutputProcessor
from .renderer import Renderer
from .session_input import Chunk, SessionOptions


@dataclass(frozen=True, slots=True)
class Submission:
    """A request that is registered and not sent yet."""

    live: LiveRequest
    collector: RequestOutputCollector
    content: str | list[int]
    params: SamplingParams
    priority: int
    cache_salt: str


class Submitter:
    """Checks requests, registers them, and makes their messages. It never waits, and sends nothing itself."""

    def __init__(
        self,
        config: EngineConfig,
        renderer: Renderer,
        inputs: InputProcessor,
        outputs: OutputProcessor,
        next_number: Callable[[], int],
        drop: Callable[[int], None],
    ) -> None:
        """`next_number` gives numbers that are unique in the engine, `drop` tells the core to forget one."""
        self._renderer = renderer
        self._inputs = inputs
        self._outputs = outputs
        self._next_number = next_number
        self._drop = drop
        self._interval = config.scheduler.stream_interval
        self._cache_block = config.cache.block_size if config.cache.enable_prefix_caching else 0

    def register(
        self,
        request_id: str | None,
        prompt: Prompt,
        params: SamplingParams,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Submission:
        """Check what can be checked without tokenising, and register the request. ValueError: nothing has happened."""
        content = self._inputs.check(prompt, params)
        salt = self._inputs.check_sharing(priority, cache_salt)
        external_id = self._inputs.check_request_id(request_id)
        live = self._live(external_id, params, content)
        collector = RequestOutputCollector(live, on_abandon=lambda: self.abandon(live))
        self._outputs.add(live, collector)
        return Submission(live, collector, content, params, priority, salt)

    def _live(
        self, external_id: str, params: SamplingParams, content: str | list[int], *, cuttable: bool = False
    ) -> LiveRequest:
        return LiveRequest(
            external_id,
            [self._next_number() for _ in range(params.n)],
            params,
            self._renderer.words(params),
            content,
            interval=self._interval,
            cache_block=self._cache_block,
            cuttable=cuttable,
        )

    def check_chunk(self, prompt: Prompt, params: SamplingParams) -> str | list[int]:
        """Check what can be checked of a session's chunk without tokenising; its text, or a copy of its token ids."""
        content = self._inputs.check(prompt, params)
        self._inputs.check_session(params)
        self._renderer.words(params)
        return content

    def turn(self, session: int, options: SessionOptions, chunk: Chunk, context: list[int]) -> tuple[LiveRequest, AddRequest]:
        """A session's turn behind this context, not registered: a request with the whole of both as its prompt. ValueError when
        there is no room for it.
        """
        self._inputs.check_turn(len(context), len(chunk.tokens), chunk.params)
        content = chunk.tokens if chunk.text is None else chunk.text
        live = self._live(options.external_id, chunk.params, content, cuttable=True)
        tokens = [*context, *chunk.tokens]
        message = self._inputs.message(
            list(live.answers), live.external_id, tokens, chunk.params, options.priority, options.cache_salt
        )
        return live, replace(message, session=session)

    def message(self, submission: Submission, tokens: list[int]) -> AddRequest | None:
        """The message for a request whose prompt is these tokens; None if it has ended meanwhile. ValueError as `register`."""
        live = submission.live
        message = self._inputs.message(
            list(live.answers), live.external_id, tokens, submission.params, submission.priority, submission.cache_salt
        )
        # Outputs show a list of their own: what a caller does to it must not reach a restarted core.
        return message if self._outputs.tokenized(live, list(tokens)) else None

    def give_up(self, submission: Submission, error: BaseException) -> None:
        """Forget a request that could not be sent, for this reason."""
        self.abandon(submission.live, "error" if isinstance(error, Exception) else "abort")

    def abandon(self, live: LiveRequest, reason: FinishReason = "abort") -> None:
        """Forget a request nobody waits for any more, here and in the core."""
        for number in self._outputs.abandon(live, reason):
            self._drop(number)
