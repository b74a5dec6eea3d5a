"""A call with many prompts or choices lets others have their turn, and what all its parts share is made once."""

import asyncio
from types import ModuleType
from typing import Any

import pytest
from api_client import CHAT, COMPLETIONS, Json
from scripted_engine import ScriptedEngine
from served_app import served
from tiny_checkpoint import write_tiny_llama

from ringpost.actors.api import answers, completions
from ringpost.actors.api.calls import in_turns
from ringpost.actors.frontend.collector import RequestOutputCollector
from ringpost.actors.frontend.input_processor import Prompt, TokensPrompt
from ringpost.ipc.messages.sampling import SamplingParams

COUNT = 8


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self.seen: dict[str, list[int]] = {}  # for each thing that was done: in which turns

    def note(self, what: str) -> None:
        self.seen.setdefault(what, []).append(self.number)
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.number += 1


class NotingEngine(ScriptedEngine):
    """Tells in which turn it does what of a call."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.turns = Turns()
        self.params: list[SamplingParams] = []

    async def check_request(self, prompt: Prompt, sampling_params: SamplingParams) -> TokensPrompt:
        self.turns.note("check")
        self.params.append(sampling_params)
        return await super().check_request(prompt, sampling_params)

    async def add_request(
        self, request_id: str | None, prompt: Prompt, sampling_params: SamplingParams | None = None, **options: Any
    ) -> RequestOutputCollector:
        self.turns.note("add")
        assert sampling_params is not None
        self.params.append(sampling_params)
        return await super().add_request(request_id, prompt, sampling_params, **options)

    async def token_texts(self, *arguments: Any, **options: Any) -> list[str]:
        self.turns.note("echo")
        return await super().token_texts(*arguments, **options)


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> NotingEngine:
    return NotingEngine(str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")))


@pytest.mark.asyncio
async def test_others_get_their_turn_between_two_prompts(engine: NotingEngine) -> None:
    async with served(engine) as api:
        reply = await api.call(COMPLETIONS, {"prompt": [*"abcdefgh"], "echo": True})
    assert [choice["text"][0] for choice in reply.json["choices"]] == [*"abcdefgh"]
    assert engine.turns.seen.keys() == {"check", "add", "echo"}
    for what, turns in engine.turns.seen.items():
        assert len(set(turns)) == len(turns) == COUNT, what


@pytest.mark.asyncio
async def test_others_get_their_turn_between_two_choices() -> None:
    turns = Turns()

    def made(number: int) -> int:
        turns.note("make")
        return -number

    assert await in_turns(made, range(COUNT)) == [-number for number in range(COUNT)]
    assert len(set(turns.seen["make"])) == COUNT


@pytest.mark.asyncio
async def test_all_prompts_share_their_parameters(engine: NotingEngine) -> None:
    """Which the engine then looks at once."""
    async with served(engine) as api:
        await api.call(COMPLETIONS, {"prompt": [*"abcdefgh"], "bad_words": ["x"]})
    assert len(engine.params) == 2 * COUNT
    assert all(params is engine.params[0] for params in engine.params)


BODIES: dict[str, Json] = {
    COMPLETIONS: {"prompt": [5] * 20, "echo": True, "logprobs": 1},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_the_logprobs_of_a_prompt_are_spelled_once_for_all_choices(
    engine: NotingEngine, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    spelled: list[tuple[str, int]] = []  # by which function, and for how many tokens

    def counted(module: ModuleType, name: str) -> None:
        real = getattr(module, name)

        def spell(*arguments: Any, **options: Any) -> Any:
            spelled.append((name, len(arguments[0])))
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, spell)

    counted(answers, "prompt_logprobs")
    counted(completions, "completion_logprobs")
    async with served(engine) as api:
        reply = await api.call(path, BODIES[path] | {"n": 3, "prompt_logprobs": 1, "stream": stream})
    assert reply.status == 200
    length = len(engine.requests[0].message.prompt)
    assert spelled.count(("prompt_logprobs", length)) == 1
    assert spelled.count(("completion_logprobs", length)) == (1 if path == COMPLETIONS else 0)
