"""Programs that use an LLM: however they are started and however they end, no process of the engine stays."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_tree import actor_pids, all_end
from programs import LIMIT, run_program
from tiny_checkpoint import write_tiny_llama

BODY = """
print("body runs")
from ringpost import LLM, SamplingParams
def main():
    llm = LLM({model!r}, num_threads=1)
    outputs = llm.generate(["ab", "cd"], SamplingParams(max_tokens=3, ignore_eos=True))
    print([len(output.outputs[0].token_ids) for output in outputs], flush=True)
    return llm
"""
ENDLESS = (
    BODY
    + """
llm = main()
llm.generate(["ab"] * 4, SamplingParams(max_tokens=None, ignore_eos=True))
"""
)
SAID = ["body runs", "[3, 3]"]
ENDS = {
    "fails": "llm = main()\nraise SystemExit(3)",
    "has a loop": "import asyncio\nasync def run():\n    main()\nasyncio.run(run())",
    "imports multiprocessing late": "llm = main()\nimport multiprocessing.pool",
    "falls off its end": "llm = main()",
    "closes": "with main() as llm: pass",
    "forgets": "main()",
}
SHORT = ("fails", "has a loop", "imports multiprocessing late")  # the others only with full counts


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=50_000))


@pytest.mark.parametrize("end", [pytest.param(end, marks=() if end in SHORT else pytest.mark.long) for end in ENDS])
def test_a_program_that_ends(no_leaks: None, tiny: str, end: str) -> None:
    """Without a word on standard error, and with the code that it chose."""
    done = run_program("-c", BODY.format(model=tiny) + ENDS[end])
    assert (done.stdout.splitlines(), done.stderr) == (SAID, "")
    assert done.returncode == (3 if end == "fails" else 0)


@pytest.mark.parametrize("way", ["unguarded", *(pytest.param(way, marks=pytest.mark.long) for way in ("guarded", "stdin"))])
def test_no_main_guard_is_needed(no_leaks: None, tmp_path: Path, tiny: str, way: str) -> None:
    source = BODY.format(model=tiny) + ("if __name__ == '__main__': llm = main()" if way == "guarded" else "llm = main()")
    script = tmp_path / "program.py"
    script.write_text(source)
    done = run_program("-", text=source) if way == "stdin" else run_program(str(script))
    assert (done.returncode, done.stdout.splitlines()) == (0, SAID), done.stderr


@contextmanager
def busy_program(tiny: str) -> Iterator[subprocess.Popen[str]]:
    """A program that waits for answers without end."""
    command = [sys.executable, "-c", ENDLESS.format(model=tiny)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert [program.stdout.readline().strip() for _ in SAID] == SAID
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_program_that_is_ended(no_leaks: None, tiny: str, how: signal.Signals) -> None:
    with busy_program(tiny) as program:
        pids = [*actor_pids(program.pid).values()]
        assert len(pids) == 2
        with all_end(pids):
            os.kill(program.pid, how)
            _, errors = program.communicate(timeout=LIMIT)
        assert program.returncode == -how
        assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)


def test_a_program_interrupted_while_the_engine_starts(no_leaks: None, tiny: str) -> None:
    source = f"""
import os, signal, threading
from ringpost import LLM
from ringpost.actors.supervisor import Supervisor
wait_ready = Supervisor.wait_ready
async def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    return await wait_ready(self)
Supervisor.wait_ready = interrupted
try:
    LLM({tiny!r})
except KeyboardInterrupt:
    print("interrupted", [thread.name for thread in threading.enumerate()])
"""
    done = run_program("-c", source)
    assert (done.stdout, done.returncode) == ("interrupted ['MainThread']\n", 0), done.stderr


def test_a_fork_has_no_part_in_the_engine(no_leaks: None, tiny: str) -> None:
    source = (
        BODY.format(model=tiny)
        + """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
with main() as llm:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        for call in (llm.generate, llm.llm_engine.abort_request):
            try:
                call("a")
            except RuntimeError as error:
                print("belongs to process" in str(error), flush=True)
        llm.shutdown()
        sys.exit(0)
    os.waitpid(child, 0)
    llm.generate("a")
    print("works on")
"""
    )
    done = run_program("-c", source)
    assert (done.stdout.splitlines(), done.returncode) == ([*SAID, "True", "True", "works on"], 0), done.stderr
