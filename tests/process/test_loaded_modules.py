"""What each process kind has in memory, and what `sched` means there."""

import asyncio
import json
from pathlib import Path

import pytest
from programs import run_program
from tiny_checkpoint import write_tiny_llama

from ringpost import AsyncLLM, SamplingParams

HEAVY = ("torch", "tokenizers", "transformers")
PROBE = """
import json, sys
import {module}
heavy = [name for name in {heavy!r} if name in sys.modules]
import sched
print(json.dumps([heavy, hasattr(sched, "scheduler")]))
"""


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("ringpost.actors.engine_core.main", []),
        ("ringpost.actors.frontend.async_llm", ["tokenizers"]),
        ("ringpost.actors.supervisor", []),
        ("ringpost.actors.worker.actor", []),
        ("ringpost.actors.worker.main", ["torch"]),
        ("ringpost.actors.cli", []),
    ],
)
def test_imports_of_a_process_kind(module: str, allowed: list[str]) -> None:
    done = run_program("-P", "-c", PROBE.format(module=module, heavy=HEAVY))
    assert done.returncode == 0, done.stderr
    heavy, standard_sched = json.loads(done.stdout)
    assert heavy == allowed
    assert standard_sched


@pytest.mark.asyncio
async def test_the_running_core_has_mapped_none_of_them(no_leaks: None, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    async with AsyncLLM.from_engine_args(model=str(model)) as engine:
        await asyncio.gather(*(_one(engine) for _ in range(4)))
        maps = {process.kind: Path(f"/proc/{process.pid}/maps").read_text() for process in engine.process_table()}
    assert "libtorch" in maps["worker"]
    for library in ("libtorch", "tokenizers", "numpy"):
        assert library not in maps["engine_core"]


async def _one(engine: AsyncLLM) -> None:
    outputs = [output async for output in engine.generate("ab", SamplingParams(max_tokens=4))]
    assert outputs[-1].finished
