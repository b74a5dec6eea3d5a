"""EngineClient: what a server or a program needs of an engine. AsyncLLM is one."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Protocol

from ...ipc.messages.config import EngineConfig
from ...ipc.messages.load import LoadStats
from ...ipc.messages.outputs import EngineDescription
from ...ipc.messages.sampling import SamplingParams
from .collector import RequestOutputCollector
from .input_processor import Prompt, TokensPrompt
from .outputs import RequestOutput
from .session import Session
from .stats import FrontendStats
from .streaming_input import Inputs


class EngineClient(Protocol):
    """The engine as seen by those who use it, from one event loop. AsyncLLM's docstrings hold the contracts."""

    @property
    def config(self) -> EngineConfig:
        """The engine's options; what it found out about the model is in them once it has started."""

    @property
    def stats(self) -> FrontendStats:
        """Counts and times of this program's requests. The live object, for reading only."""

    @property
    def is_running(self) -> bool:
        """Whether the engine can serve now."""

    @property
    def errored(self) -> bool:
        """Whether the engine has died or was shut down."""

    @property
    def num_unfinished_requests(self) -> int:
        """Live requests of this program."""

    async def check_request(self, prompt: Prompt, sampling_params: SamplingParams) -> TokensPrompt:
        """The prompt as token ids, when `add_request` would take it. ValueError for a wrong request."""

    async def add_request(
        self,
        request_id: str | None,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutputCollector:
        """Send a request; its outputs come through the collector, which must be closed. ValueError for a wrong one."""

    def generate(
        self,
        prompt: Prompt | Inputs,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to a prompt, or the answers to prompts as they come."""

    async def open_session(
        self,
        sampling_params: SamplingParams | None = None,
        session_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        idle_timeout: float | None = None,
    ) -> Session:
        """A session, which must be closed. ValueError for wrong options, TooManySessions."""

    async def chat_prompt(self, messages: Sequence[dict[str, Any]]) -> TokensPrompt:
        """The prompt for a conversation, by the model's chat template. ValueError where that is not possible."""

    async def token_ids(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text. ValueError where that is not possible."""

    async def token_texts(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> list[str]:
        """What each token adds to the text of all, which these joined are."""

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests and sessions from outside."""

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache; True. EngineError when the core does not say that it has."""

    async def describe(self) -> EngineDescription:
        """Numbers of the core right now. EngineError when it cannot tell."""

    def load(self) -> LoadStats | None:
        """How busy the core was after its last step; never waits. None while the engine does not run."""

    async def check_health(self) -> None:
        """Raise EngineDeadError when the engine cannot serve any more, EngineRecoveringError while a part of it is replaced,
        EngineHungError when one gets on with nothing.
        """
