"""Ringpost: an LLM inference engine of asyncio actors joined by typed mailboxes in shared memory.

Importing it is cheap: each name is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .actors.api.app import build_app
    from .actors.errors import (
        EngineDeadError,
        EngineError,
        EngineGenerateError,
        EngineHungError,
        EngineStartError,
        RequestEnded,
        SessionTimeout,
        TooManySessions,
    )
    from .actors.frontend.async_llm import AsyncLLM, AsyncLLMEngine
    from .actors.frontend.collector import RequestOutputCollector
    from .actors.frontend.engine_client import EngineClient
    from .actors.frontend.input_processor import Prompt
    from .actors.frontend.llm import LLM
    from .actors.frontend.llm_engine import LLMEngine
    from .actors.frontend.logprobs import FlatLogprobs, Logprob
    from .actors.frontend.outputs import ChunkBoundary, CompletionOutput, RequestMetrics, RequestOutput
    from .actors.frontend.session import Session
    from .actors.frontend.streaming_input import StreamingInput
    from .ipc.messages.config import ApiConfig, EngineConfig
    from .ipc.messages.errors import ParameterError
    from .ipc.messages.sampling import RepetitionDetectionParams, RequestOutputKind, SamplingParams
    from .model_runner.checkpoint.errors import CheckpointError
    from .model_runner.logits_processor import LogitsProcessor

    __version__: str

_HOMES = {
    "ApiConfig": ".ipc.messages.config",
    "AsyncLLM": ".actors.frontend.async_llm",
    "AsyncLLMEngine": ".actors.frontend.async_llm",
    "CheckpointError": ".model_runner.checkpoint.errors",
    "ChunkBoundary": ".actors.frontend.outputs",
    "CompletionOutput": ".actors.frontend.outputs",
    "EngineClient": ".actors.frontend.engine_client",
    "EngineConfig": ".ipc.messages.config",
    "EngineDeadError": ".actors.errors",
    "EngineError": ".actors.errors",
    "EngineGenerateError": ".actors.errors",
    "EngineHungError": ".actors.errors",
    "EngineStartError": ".actors.errors",
    "FlatLogprobs": ".actors.frontend.logprobs",
    "LLM": ".actors.frontend.llm",
    "LLMEngine": ".actors.frontend.llm_engine",
    "LogitsProcessor": ".model_runner.logits_processor",
    "Logprob": ".actors.frontend.logprobs",
    "ParameterError": ".ipc.messages.errors",
    "Prompt": ".actors.frontend.input_processor",
    "RepetitionDetectionParams": ".ipc.messages.sampling",
    "RequestEnded": ".actors.errors",
    "RequestMetrics": ".actors.frontend.outputs",
    "RequestOutput": ".actors.frontend.outputs",
    "RequestOutputCollector": ".actors.frontend.collector",
    "RequestOutputKind": ".ipc.messages.sampling",
    "SamplingParams": ".ipc.messages.sampling",
    "Session": ".actors.frontend.session",
    "SessionTimeout": ".actors.errors",
    "StreamingInput": ".actors.frontend.streaming_input",
    "TooManySessions": ".actors.errors",
    "build_app": ".actors.api.app",
}

__all__ = [
    "LLM",
    "ApiConfig",
    "AsyncLLM",
    "AsyncLLMEngine",
    "CheckpointError",
    "ChunkBoundary",
    "CompletionOutput",
    "EngineClient",
    "EngineConfig",
    "EngineDeadError",
    "EngineError",
    "EngineGenerateError",
    "EngineHungError",
    "EngineStartError",
    "FlatLogprobs",
    "LLMEngine",
    "LogitsProcessor",
    "Logprob",
    "ParameterError",
    "Prompt",
    "RepetitionDetectionParams",
    "RequestEnded",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputCollector",
    "RequestOutputKind",
    "SamplingParams",
    "Session",
    "SessionTimeout",
    "StreamingInput",
    "TooManySessions",
    "build_app",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home, or find the version, on first use."""
    if name == "__version__":
        value = importlib.import_module("importlib.metadata").version("ringpost")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
