"""EngineClient: what a server or a program needs of an engine. AsyncLLM is one."""

from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from ...ipc.messages.sampling import SamplingParams
from .input_processor import Prompt
from .outputs import RequestOutput


class EngineClient(Protocol):
    """The engine as seen by those who use it."""

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to a prompt. See AsyncLLM.generate."""

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests from outside. See AsyncLLM.abort."""

    async def check_health(self) -> None:
        """Raise EngineDeadError when the engine cannot serve."""

    @property
    def errored(self) -> bool:
        """Whether the engine has died."""
