"""Custom logits processors in an engine: by import path in its processes, as objects in a single process."""

from pathlib import Path
from typing import Any

import pytest

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams
from ringpost.ipc.messages.errors import ParameterError
from ringpost.model_runner.logits_processor import LogitsProcessor

pytestmark = [pytest.mark.asyncio(loop_factories=["uvloop"]), pytest.mark.usefixtures("no_leaks")]

SOURCE = '''
from ringpost.model_runner.logits_processor import LogitsProcessor


class Countdown(LogitsProcessor):
    """Each token is one less than the one before; the first is `first` less what the output holds already."""

    def __init__(self, config, first=100):
        self.first = first
        self.rows = {}

    @classmethod
    def validate_params(cls, params):
        if not (params.extra_args or {}).get("count", True):
            raise ValueError("count must be true")

    def update_state(self, update):
        for added in update.added if update else ():
            self.rows[added.row] = added.output_ids

    def apply(self, logits, rows):
        for index, row in enumerate(rows.tolist()):
            logits[index, self.first - len(self.rows[row])] = 1e6
        return logits
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that the engine's processes find too."""
    (tmp_path / "counting_down.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


async def tokens(engine: AsyncLLM, **params: Any) -> list[int]:
    sampling = SamplingParams(max_tokens=5, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY, **params)
    (output,) = [output async for output in engine.generate([5, 6], sampling)]
    return list(output.outputs[0].token_ids)


async def test_a_class_by_its_path(package: None, tiny: str) -> None:
    options = {"model": tiny, "num_threads": 1, "logits_processors": ['counting_down.Countdown {"first": 60}']}
    async with AsyncLLM.from_engine_args(**options) as engine:
        assert await tokens(engine, temperature=0) == [60, 59, 58, 57, 56]
        assert await tokens(engine, seed=1, extra_args={"count": True}) == [60, 59, 58, 57, 56]
        with pytest.raises(ParameterError, match="extra_args must suit the logits processors: count must be true") as caught:
            await tokens(engine, extra_args={"count": False})
        assert caught.value.parameter == "extra_args"
        assert engine.num_unfinished_requests == 0


async def test_a_path_that_leads_nowhere_is_told_before_anything_starts(tiny: str) -> None:
    with pytest.raises(ValueError, match=r"logits_processors 'nowhere.Countdown' cannot be imported"):
        async with AsyncLLM.from_engine_args(model=tiny, logits_processors=["nowhere.Countdown"]):
            pass


class Only(LogitsProcessor):
    """An object made by the test."""

    def __init__(self, token: int) -> None:
        self.token = token

    def apply(self, logits: Any, rows: Any) -> Any:
        logits[:, self.token] = 1e6
        return logits


async def test_an_object_in_a_single_process(tiny: str) -> None:
    options = {"model": tiny, "num_threads": 1, "single_process": True, "logits_processors": [Only(77)]}
    async with AsyncLLM.from_engine_args(**options) as engine:
        assert await tokens(engine, temperature=0) == [77] * 5


async def test_an_object_cannot_cross_to_other_processes(tiny: str) -> None:
    with pytest.raises(ValueError, match=r"logits_processors must be import paths.*; objects need single_process, got <"):
        AsyncLLM.from_engine_args(model=tiny, logits_processors=[Only(77)])
