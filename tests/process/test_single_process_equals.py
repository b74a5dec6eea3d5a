"""An engine in one process and one of several: the same answers, and torch where it belongs."""

from pathlib import Path

import pytest
from programs import run_program

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams

PROGRAM = """
import asyncio, sys
from ringpost import AsyncLLM, SamplingParams
async def main(model, single):
    async with AsyncLLM.from_engine_args(model=model, single_process=single) as engine:
        async for _ in engine.generate("ab", SamplingParams(max_tokens=2)):
            pass
    print("torch" in sys.modules)
asyncio.run(main(sys.argv[1], sys.argv[2] == "single"))
"""


async def answer(engine: AsyncLLM, seed: int) -> tuple[list[int], str]:
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=seed, output_kind=RequestOutputKind.FINAL_ONLY)
    (output,) = [output async for output in engine.generate("the inner", params)]
    return list(output.outputs[0].token_ids), output.outputs[0].text


@pytest.mark.long
@pytest.mark.asyncio
async def test_the_same_seed_draws_the_same_tokens(no_leaks: None, tiny: str) -> None:
    answers = []
    for single in (False, True):
        async with AsyncLLM.from_engine_args(model=tiny, single_process=single, dtype="float32") as engine:
            answers.append([await answer(engine, seed) for seed in range(4)])
    assert answers[0] == answers[1]
    assert len({text for _, text in answers[0]}) == 4


@pytest.mark.parametrize(("how", "loaded"), [("several", "False"), ("single", "True")])
def test_torch_is_loaded_here_only_in_a_single_process(how: str, loaded: str, tiny: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_program("-P", str(program), tiny, how)
    assert (done.returncode, done.stdout.strip()) == (0, loaded), done.stderr
