"""Programs that embed the engine without any ceremony."""

import os
from pathlib import Path

import pytest
from programs import run_program

BODY = """
import asyncio, os, sys
print("body runs")
from ringpost import AsyncLLM, SamplingParams

async def main():
    async with AsyncLLM.from_engine_args(model={model!r}) as engine:
        async for output in engine.generate("ab", SamplingParams(max_tokens=3, ignore_eos=True)):
            pass
        children = [open(f"/proc/self/task/{{task}}/children").read().split() for task in os.listdir("/proc/self/task")]
        print(len(output.outputs[0].token_ids), "tokens from", len(engine.process_table()), "processes")
        print(sum(map(len, children)), "children")
"""
UNGUARDED = BODY + "\nasyncio.run(main())\n"
GUARDED = BODY + "\nif __name__ == '__main__':\n    asyncio.run(main())\n"
LATER = (
    UNGUARDED
    + """
forbidden = [name for name in ("torch", "zmq") if name in sys.modules]
import sched
print("forbidden:", forbidden, "sched:", hasattr(sched, "scheduler"))
"""
)


@pytest.mark.parametrize("way", ["unguarded", "guarded", "-c", "stdin"])
def test_no_main_guard_is_needed(no_leaks: None, tmp_path: Path, tiny: str, way: str) -> None:
    source = (GUARDED if way == "guarded" else UNGUARDED).format(model=tiny)
    script = tmp_path / "program.py"
    script.write_text(source)
    if way == "stdin":
        done = run_program("-", text=source)
    else:
        done = run_program("-c", source) if way == "-c" else run_program(str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["body runs", "3 tokens from 3 processes", "2 children"]


def test_the_frontend_loads_no_torch(no_leaks: None, tiny: str) -> None:
    done = run_program("-P", "-c", LATER.format(model=tiny))
    assert done.stdout.splitlines()[-1] == "forbidden: [] sched: True", done.stderr


def test_a_module_of_the_users_that_is_called_like_ours_does_no_harm(no_leaks: None, tmp_path: Path, tiny: str) -> None:
    """The children do not get the program's working directory or script folder on their path."""
    for name in ("sched", "torch", "msgspec", "select"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    (tmp_path / "program.py").write_text(UNGUARDED.format(model=tiny))
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        done = run_program("-P", str(tmp_path / "program.py"))
    finally:
        os.chdir(here)
    assert done.returncode == 0, done.stderr


def test_an_engine_that_was_never_shut_down_ends_with_the_program(no_leaks: None, tiny: str) -> None:
    source = f"""
import asyncio
from ringpost import AsyncLLM
engine = AsyncLLM.from_engine_args(model={tiny!r})
async def main():
    async for output in engine.generate("ab"):
        break
    print("leaves")
asyncio.run(main())
"""
    done = run_program("-c", source)
    assert (done.returncode, done.stdout) == (0, "leaves\n"), done.stderr


@pytest.mark.long
def test_two_engines_in_one_program(no_leaks: None, tiny: str) -> None:
    source = f"""
import asyncio
from ringpost import AsyncLLM, SamplingParams
async def run(seed):
    async with AsyncLLM.from_engine_args(model={tiny!r}, num_threads=1) as engine:
        async for output in engine.generate("ab", SamplingParams(seed=seed, max_tokens=5, ignore_eos=True)):
            pass
        return output.outputs[0].token_ids
async def main():
    first, second, third = await asyncio.gather(run(1), run(1), run(2))
    print(first == second != third)
asyncio.run(main())
"""
    done = run_program("-c", source)
    assert done.stdout == "True\n", done.stderr
