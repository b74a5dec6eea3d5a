"""ScriptedEngine: an engine without processes, whose answers are in the hands of the test."""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec.structs import replace
from scripted_sessions import ScriptedSessions
from tiny_checkpoint import EOS_TOKEN_ID, FIRST_BYTE_ID

from ringpost.actors.config import engine_config, resolve_config
from ringpost.actors.errors import EngineDeadError, EngineError
from ringpost.actors.frontend.collector import RequestOutputCollector
from ringpost.actors.frontend.input_processor import InputProcessor, Prompt, TokensPrompt
from ringpost.actors.frontend.live_request import LiveRequest
from ringpost.actors.frontend.output_processor import OutputProcessor
from ringpost.actors.frontend.outputs import RequestOutput
from ringpost.actors.frontend.renderer import Renderer
from ringpost.actors.frontend.session import Session
from ringpost.actors.frontend.session_turn import Turn
from ringpost.actors.frontend.stats import FrontendStats
from ringpost.actors.frontend.streaming_input import Inputs
from ringpost.actors.frontend.submission import Submitter
from ringpost.ipc.messages.load import LoadStats
from ringpost.ipc.messages.outputs import EngineDescription, FinishReason, TokenDelta, TokenLogprobs
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import SamplingParams

NUM_BLOCKS = 64


@dataclass(frozen=True)
class End:
    """The last step of an answer: its tokens, and the reason why no more come."""

    text: str = ""
    reason: FinishReason = "length"
    stop_reason: int | None = None


Step: TypeAlias = str | bytes | list[int] | End | Exception  # text, bytes of a text, tokens, the end, or a failure


def token_ids(text: str | bytes) -> list[int]:
    """The tokens by which the engine says a text: one a byte."""
    return [FIRST_BYTE_ID + byte for byte in (text.encode() if isinstance(text, str) else text)]


class _Collector(RequestOutputCollector):
    """Takes the next step of the script only when its consumer has taken the one before, so that no two are merged."""

    script: list[Step]
    play: Callable[[Step], None]

    def get_nowait(self) -> RequestOutput | None:
        while self.script and not self._live.has_output and self._error is None:
            self.play(self.script.pop(0))
        return super().get_nowait()


class ScriptedRequest:
    """A request that has reached the engine."""

    def __init__(
        self,
        outputs: OutputProcessor,
        live: LiveRequest,
        message: AddRequest,
        params: SamplingParams,
        script: list[Step],
        cached: int,
    ) -> None:
        self._outputs = outputs
        self._live = live
        self._cached = cached  # prompt tokens found in the cache, told with the first step
        self.unsaid = script  # steps that nobody has asked for yet
        self.message = message
        self.params = params  # as the caller gave them
        self.position = 0

    def say(self, step: Step) -> None:
        """What the core would send now, the same for each answer."""
        if isinstance(step, Exception):
            self._outputs.fail(self.message.request, step)
            return
        reason, stop_reason = (step.reason, step.stop_reason) if isinstance(step, End) else (None, None)
        tokens = list(step) if isinstance(step, list) else token_ids(step.text if isinstance(step, End) else step)
        if reason == "stop":
            tokens.append(EOS_TOKEN_ID if stop_reason is None else stop_reason)
        logprobs = [] if self.params.logprobs is None else [logprobs_of(token, self.params.logprobs) for token in tokens]
        prompt: list[TokenLogprobs] = []
        if self.params.prompt_logprobs is not None and not self.position:
            prompt = [logprobs_of(token, self.params.prompt_logprobs) for token in self.message.prompt[1:]]
        delta = TokenDelta(
            self.message.request, self.position, tokens, reason, stop_reason, self._cached, 0.0, logprobs, prompt, 1
        )
        self._cached = 0
        self._outputs.process([replace(delta, request=number) for number in list(self._live.open)])
        self.position += len(tokens)


def logprobs_of(token: int, count: int) -> TokenLogprobs:
    """What the engine says of a token: it is the likeliest, and the ids after it follow, each half a nat behind the last."""
    others = range(count)
    ids, logprobs = array("i", [token + other for other in others]), array("f", [-0.25 - other / 2 for other in others])
    return TokenLogprobs(-0.25, 1, ids.tobytes(), logprobs.tobytes())


class ScriptedEngine:
    """An EngineClient with the real checks, tokenizer, collectors and texts of AsyncLLM, and a script instead of a core.

    `answers` holds the steps for each text prompt, and under None those for all others; where they run out before an `End`,
    the request waits for what the test lets it `say`.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.config = resolve_config(engine_config(model=model, **options))
        self.answers: dict[str | None, Sequence[Step]] = {None: ("Hel", "lo", End("!"))}
        self.cached: list[int] = []  # prompt tokens that the next requests find in the cache, in order; then none
        self.counts = (0, 0, 0)  # preemptions, prompt tokens looked up in the cache, and found there
        self.resets: list[bool] = []  # calls of `reset_prefix_cache`: whether running requests too
        self.requests: list[ScriptedRequest] = []
        self.aborted: list[str] = []  # ids of requests whose consumer left before their end
        self.chats = 0  # conversations that it was asked to render
        self.started = True
        self.unwell: EngineError | None = None  # what `check_health` raises though requests are taken
        self.refusal: Exception | None = None  # what `add_request` raises
        self.may_render = asyncio.Event()  # cleared, it holds prompts up while they are rendered
        self.may_render.set()
        self.rendering = 0
        self._renderer = Renderer(self.config.checkpoint)
        self._inputs = InputProcessor(self.config, self._renderer, NUM_BLOCKS)
        self._outputs = OutputProcessor()
        self._submitter = Submitter(self.config, self._renderer, self._inputs, self._outputs, self._next_number, lambda _: None)
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self.sessions = ScriptedSessions(
            self.config, self._inputs, self._outputs, self._submitter, self._take_turn, self._news.set
        )
        self._number = 0
        self._texts: dict[tuple[int, ...], str] = {}  # of prompts that come as the tokens they were checked to be

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something has come true of the requests; the watchdog ends a wait that is in vain."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def nth_request(self, number: int) -> ScriptedRequest:
        """A request, counted from 0, as soon as it is there."""
        await self.until(lambda: len(self.requests) > number)
        return self.requests[number]

    async def spoken(self, number: int) -> ScriptedRequest:
        """The same, once all of its script has been said."""
        request = await self.nth_request(number)
        await self.until(lambda: not request.unsaid)
        return request

    def die(self, reason: str = "worker0.0 (pid 7): ProcessDied: killed by signal 9") -> None:
        """End as when a process of the engine has died."""
        self._error = EngineDeadError(reason)
        self.sessions.fail_all(self._error)
        self._outputs.fail_all(self._error)

    def shutdown(self) -> None:
        """End as when the engine is shut down."""
        self._error = EngineDeadError("the engine was shut down")
        self.sessions.abort_all(self._error)
        for live in self._outputs.live():
            self._outputs.abort(live)

    @property
    def stats(self) -> FrontendStats:
        return self._outputs.stats

    @property
    def is_running(self) -> bool:
        return self.started and self._error is None

    @property
    def errored(self) -> bool:
        return self._error is not None

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._outputs)

    def _require_alive(self) -> None:
        if self._error is not None:
            raise EngineDeadError(str(self._error))

    async def check_health(self) -> None:
        self._require_alive()
        if self.unwell is not None:
            raise self.unwell

    def load(self) -> LoadStats | None:
        return LoadStats(0, len(self._outputs), 0, 0, NUM_BLOCKS, *self.counts) if self.is_running else None

    async def describe(self) -> EngineDescription:
        self._require_alive()
        return EngineDescription(len(self._outputs), 0, NUM_BLOCKS, NUM_BLOCKS, 0)

    async def check_request(self, prompt: Prompt, sampling_params: SamplingParams) -> TokensPrompt:
        checked = await self._inputs.tokens_of(prompt, sampling_params)
        if isinstance(prompt, str):
            self._texts[tuple(checked["prompt_token_ids"])] = prompt
        return checked

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        self._require_alive()
        self.resets.append(reset_running_requests)
        return True

    async def add_request(
        self,
        request_id: str | None,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutputCollector:
        self._require_alive()
        if self.refusal is not None:
            raise self.refusal
        params = sampling_params or SamplingParams()
        submission = self._submitter.register(request_id, prompt, params, priority, cache_salt)
        live = submission.live
        collector = _Collector(live, on_abandon=lambda: self._abandon(live))
        content = submission.content
        text = content if isinstance(content, str) else self._texts.get(tuple(content))
        collector.script = list(self.answers.get(text, self.answers[None]))
        self._outputs.add(live, collector)
        try:
            await self._render()
            message = self._submitter.message(submission, await self._inputs.encode(content))
            assert message is not None
        except BaseException:
            self._abandon(live)
            raise
        cached = self.cached.pop(0) if self.cached else 0
        request = ScriptedRequest(self._outputs, live, message, params, collector.script, cached)
        collector.play = lambda step: self._play(request, step)
        self.requests.append(request)
        self._news.set()
        return collector

    async def open_session(
        self,
        sampling_params: SamplingParams | None = None,
        session_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        idle_timeout: float | None = None,
    ) -> Session:
        self._require_alive()
        params = sampling_params or SamplingParams()
        return self.sessions.open(params, session_id, priority=priority, cache_salt=cache_salt, idle_timeout=idle_timeout)

    def _take_turn(self, turn: Turn, message: AddRequest) -> None:
        """A session's turn: all of its script is said at once, and the rest is the test's to say."""
        cached = self.cached.pop(0) if self.cached else 0
        script = list(self.answers.get(turn.chunk.text, self.answers[None]))
        request = ScriptedRequest(self._outputs, turn.live, message, turn.chunk.params, script, cached)
        self.requests.append(request)
        while script:
            self._play(request, script.pop(0))
        self._news.set()

    def _play(self, request: ScriptedRequest, step: Step) -> None:
        request.say(step)
        self._news.set()

    async def chat_prompt(self, messages: Sequence[dict[str, Any]]) -> TokensPrompt:
        self.chats += 1
        await self._render()
        return {"prompt_token_ids": await self._renderer.encode_chat(messages)}

    async def token_ids(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return await self._renderer.encode(text, add_special_tokens=add_special_tokens)

    async def token_texts(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> list[str]:
        return await self._renderer.token_texts(token_ids, skip_special_tokens=skip_special_tokens)

    async def _render(self) -> None:
        self.rendering += 1
        self._news.set()
        try:
            await self.may_render.wait()
        finally:
            self.rendering -= 1
            self._news.set()

    def _abandon(self, live: LiveRequest) -> None:
        if self._outputs.abandon(live):
            self.aborted.append(live.external_id)
            self._news.set()

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    async def abort(self, request_id: str | Iterable[str]) -> None:
        for live in self._outputs.requests_of({request_id} if isinstance(request_id, str) else set(request_id)):
            self._outputs.abort(live)

    def generate(
        self,
        prompt: Prompt | Inputs,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        raise NotImplementedError("the server takes outputs from collectors")
