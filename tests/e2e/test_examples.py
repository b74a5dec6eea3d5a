"""The programs in examples/ and the one in README.md run as they are."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import LIMIT, run_program
from servers import ServerProcess, running_program, running_server
from source_tree import ROOT

EXAMPLES = ROOT / "examples"
BARGE_IN = [sys.executable, "-P", str(EXAMPLES / "barge_in.py")]


def test_every_example_is_run_here() -> None:
    run = {"offline.py", "stream.py", "sse_server.py", "openai_client.py", "barge_in.py", "transcript.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == run


def test_stream(no_leaks: None, smollm2: str) -> None:
    done = run_program("-P", str(EXAMPLES / "stream.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[The capital ...]") > 1


def test_offline(no_leaks: None, smollm2: str) -> None:
    done = run_program("-P", str(EXAMPLES / "offline.py"))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"'The capital.*: ' Paris.*\n'Once.*\n'def.*\nchat: '.*Paris.*'\n", done.stdout)


def test_barge_in_answers_a_line(no_leaks: None, smollm2: str) -> None:
    done = run_program("-P", str(EXAMPLES / "barge_in.py"), text="What is the capital of France?\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r".*Paris.*\n\[stop; \d+ tokens so far\]\n", done.stdout, re.DOTALL)


def test_barge_in_stops_an_answer_for_a_new_line(no_leaks: None, smollm2: str) -> None:
    text = "Tell me a long story.\nWhat is the capital of France?\n"
    done = run_program("-P", str(EXAMPLES / "barge_in.py"), text=text)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r".*\n\[interrupt; \d+ tokens so far\]\n.*Paris.*\n\[stop; \d+ .*\]\n", done.stdout, re.DOTALL)


def test_barge_in_reads_a_file(no_leaks: None, smollm2: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("What is the capital of France?")  # a last line needs no end
    with (tmp_path / "lines").open() as lines:
        done = subprocess.run(BARGE_IN, stdin=lines, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"Ready.*Paris.*\n\[stop; \d+ tokens so far\]\n", done.stdout, re.DOTALL)


def test_barge_in_without_input(no_leaks: None, smollm2: str) -> None:
    done = run_program(*BARGE_IN[1:])  # with /dev/null
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"Ready.*\n", done.stdout)


def test_barge_in_ends_at_ctrl_c(no_leaks: None, smollm2: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(BARGE_IN, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline().startswith("Ready")
            program.stdin.write("Tell me a long story.\n")
            program.stdin.flush()
            assert program.stdout.read(1)
            os.killpg(program.pid, signal.SIGINT)  # as a terminal does
            _, errors = program.communicate(timeout=LIMIT)
        finally:
            program.kill()
        assert (program.returncode, errors) == (0, "")


def test_transcript(no_leaks: None, smollm2: str) -> None:
    done = run_program("-P", str(EXAMPLES / "transcript.py"))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r".*road.*\n\[first token \d+ ms after the last word\]\n", done.stdout, re.DOTALL)


def test_sse_server(no_leaks: None, smollm2: str) -> None:
    command = [sys.executable, "-P", str(EXAMPLES / "sse_server.py"), "127.0.0.1:0"]
    with running_program(command, PYTHONUNBUFFERED="1") as server:
        url = f"{server.url}/generate"
        assert "".join(event["text"] for event in streamed(url, "The capital of France is")).strip()
        next(streamed(url, "Once upon a time"))  # and leave
        for wrong in ("", 3):
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                next(streamed(url, wrong))
            assert b"prompt must" in refused.value.read()
        assert server.stop(signal.SIGINT) == 0
        assert server.stderr() == ""


def streamed(url: str, prompt: object) -> Iterator[dict[str, str]]:
    """The events of a stream; dropping the iterator leaves it."""
    request = urllib.request.Request(url, json.dumps({"prompt": prompt}).encode())
    with urllib.request.urlopen(request, timeout=LIMIT) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        for line in response:
            if line.strip():
                yield json.loads(line.removeprefix(b"data: "))


@pytest.fixture(scope="module")
def server(smollm2: str) -> Iterator[ServerProcess]:
    with running_server("--max-model-len", "512", "--num-threads", "1") as running:
        yield running
        assert running.stderr() == ""


def test_openai_client(no_leaks: None, server: ServerProcess) -> None:
    done = run_program("-P", str(EXAMPLES / "openai_client.py"), f"{server.url}/v1")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"model: m\nchat:  .*Paris.*\ncompletion: Paris.*\nusage: 5 \+ 8 tokens\n", done.stdout, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed; .ci/run installs it")
def test_the_readmes_curl_commands_run(no_leaks: None, server: ServerProcess) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (commands,) = [block for block in blocks if block.startswith("curl ")]
    script = commands.replace("http://127.0.0.1:8000", server.url).replace("curl ", "curl -sS --fail-with-body ")
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    completion, _, rest = done.stdout.partition("data: ")
    assert json.loads(completion)["choices"][0]["text"].startswith(" Paris")
    events, _, rest = rest.partition("data: [DONE]\n\n")
    assert len(events.split("data: ")) > 5
    models, _, metrics = rest.partition("# HELP")
    assert json.loads(models)["data"][0]["id"] == "m"
    assert "ringpost:generation_tokens_total" in metrics


def test_the_program_in_the_readme_runs(no_leaks: None, smollm2: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (source,) = [block for block in blocks if "asyncio.run(" in block]  # the others are parts of programs
    done = run_program("-P", "-c", source)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readmes_commands_exist() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\S+)", text, re.MULTILINE)
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    lines = re.findall(r"^ringpost ((?:bench )?\w+) (.*)", text, re.MULTILINE)
    assert lines
    for command, rest in lines:
        known = run_program("-P", "-m", "ringpost", *command.split(), "--help").stdout
        assert known, command
        assert all(flag in known for flag in re.findall(r"--[\w-]+", rest)), rest
