"""`ringpost chat` as a user runs it: once, as a conversation through a pipe, and at a terminal."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import COMMAND, LIMIT, run_program, run_ringpost
from servers import ServerProcess, running_server
from stub_server import Reply, answer, event, failure, piece, stub_server
from terminals import Terminal
from tiny_checkpoint import write_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[ServerProcess]:
    with running_server("--model", str(tiny), "--num-threads", "1", "--api-key", "secret") as server:
        yield server


def piped(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_program("-P", "-m", "ringpost", "chat", *arguments, text=text)


def assert_one_line(done: "subprocess.CompletedProcess[str]", code: int, *named: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("ringpost chat: ")
    assert all(name in done.stderr for name in named), done.stderr


def test_a_server_and_an_engine_of_its_own_answer_alike(no_leaks: None, server: ServerProcess, tiny: Path) -> None:
    options = ("--system-prompt", "sp", "--temperature", "0", "--max-tokens", "12", "--ignore-eos", "ab")
    there = run_ringpost("chat", "--url", server.url, "--api-key", "secret", *options)
    here = run_ringpost("chat", "--model", str(tiny), "--num-threads", "1", *options)
    assert there.returncode == here.returncode == 0, there.stderr + here.stderr
    assert there.stderr == here.stderr == ""
    assert there.stdout == here.stdout != "\n"


def test_the_key_may_come_from_the_environment(no_leaks: None, server: ServerProcess) -> None:
    done = run_ringpost("chat", "--url", server.url, "--max-tokens", "1", "ab", RINGPOST_API_KEY="secret")
    assert done.returncode == 0, done.stderr


def test_a_wrong_key_is_a_mistake(no_leaks: None, server: ServerProcess) -> None:
    assert_one_line(run_ringpost("chat", "--url", server.url, "--api-key", "x", "ab"), 2, server.url, "401", "API key")


def test_a_wrong_model_is_a_mistake(no_leaks: None, server: ServerProcess) -> None:
    done = run_ringpost("chat", "--url", server.url, "--api-key", "secret", "--model", "other", "ab")
    assert_one_line(done, 2, server.url, "404", "other")


def test_a_server_that_is_not_there_is_a_mistake(no_leaks: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert_one_line(run_ringpost("chat", "--url", url, "ab"), 2, url, "Connection refused")


@pytest.mark.parametrize("reply", [Reply(failure("too busy"), 503), Reply(event(error={"message": "too busy"}))])
def test_a_server_that_fails_is_a_failure(no_leaks: None, reply: Reply) -> None:
    with stub_server(reply) as stub:
        assert_one_line(run_ringpost("chat", "--url", stub.url, "ab"), 1, stub.url, "too busy")


def test_a_conversation_through_a_pipe(no_leaks: None) -> None:
    with stub_server(answer("so", " it is"), answer("no")) as stub:
        done = piped("why?\n\nreally?", "--url", stub.url, "--system-prompt", "be brief", "--temperature", "0", "--top-k", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "so it is\nno\n", "")
    first = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]
    second = [*first, {"role": "assistant", "content": "so it is"}, {"role": "user", "content": "really?"}]
    assert [body.pop("messages") for body in stub.bodies] == [first, second]
    assert stub.bodies == [{"model": "first", "stream": True, "temperature": 0.0, "top_k": 3}] * 2


def test_a_pipe_without_a_line_starts_and_ends(no_leaks: None, tiny: Path) -> None:
    done = piped("", "--model", str(tiny))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_pipe_ends_at_the_first_failure(no_leaks: None) -> None:
    with stub_server(Reply(failure("not like this"), 400)) as stub:
        assert_one_line(piped("why?\nreally?\n", "--url", stub.url), 2, stub.url, "not like this")


def test_a_full_context_begins_anew(no_leaks: None, tiny: Path) -> None:
    """The first answer goes on to the end of the context, so the second question cannot follow it."""
    options = ("--num-threads", "1", "--max-model-len", "64", "--ignore-eos", "--seed", "3")
    done = piped("ab\ncd\n", "--model", str(tiny), *options)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "the context is full" in done.stderr
    assert len(done.stdout) > len("\n\n")


def test_after_a_full_context_the_question_is_asked_again(no_leaks: None) -> None:
    full = Reply(failure("too long", "context_length_exceeded"), 400)
    with stub_server(answer("so"), full, answer("no"), full) as stub:
        done = piped("why?\nreally?\n", "--url", stub.url, "--system-prompt", "be brief")
        assert (done.returncode, done.stdout) == (0, "so\nno\n")
        assert stub.bodies[2]["messages"] == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "really?"},
        ]
        assert_one_line(piped("why?\n", "--url", stub.url), 2, "too long")


@contextmanager
def chatting(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A conversation whose lines come through a pipe."""
    command = [COMMAND, "chat", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def test_an_interrupt_ends_the_answer_only(no_leaks: None) -> None:
    with stub_server(Reply(piece("so "), then="hold"), answer("no")) as stub, chatting("--url", stub.url) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("why?\n")
        assert process.stdout.read(3) == "so "
        process.send_signal(signal.SIGINT)
        assert stub.was_left.wait(LIMIT)
        process.stdin.write("really?\n")
        assert process.communicate(timeout=LIMIT) == ("\nno\n", "")
        assert process.returncode == 0
        said = [message["content"] for message in stub.bodies[1]["messages"]]
        assert said == ["why?", "so ", "really?"]


@pytest.mark.long
def test_an_interrupt_ends_the_answer_of_its_own_engine(no_leaks: None, tmp_path: Path) -> None:
    """A whole first answer would leave no room in the context for a second question."""
    model = write_tiny_llama(tmp_path / "model", max_position_embeddings=700)
    with chatting("--model", str(model), "--num-threads", "1", "--ignore-eos", "--max-tokens", "600") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("ab\n")
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate("cd\n", timeout=LIMIT)
    assert (process.returncode, errors) == (0, "")
    assert len(out) > 300


def test_an_interrupt_between_answers_ends_the_command(no_leaks: None) -> None:
    with stub_server() as stub, chatting("--url", stub.url) as process:
        assert stub.was_asked.wait(LIMIT)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=LIMIT) == ("", "")
        assert process.returncode == 130


def test_a_conversation_at_a_terminal(no_leaks: None) -> None:
    replies = (Reply(piece("so "), then="hold"), Reply(failure("not like this"), 400), answer("no"))
    with stub_server(*replies) as stub, Terminal("chat", "--url", stub.url) as terminal:
        terminal.wait_for("> ")
        terminal.type("whx\x7fy?\n")  # with a slip and a backspace
        terminal.wait_for("so ")
        terminal.type("\x03")
        terminal.wait_for("> ")
        terminal.type("really?\n")
        assert "ringpost chat: " in terminal.wait_for("not like this")
        terminal.wait_for("> ")
        terminal.type("not?\n")
        terminal.wait_for("no")
        terminal.wait_for("> ")
        terminal.type("\x03")
        assert terminal.wait_for_end() == 130
        said = [message["content"] for message in stub.bodies[2]["messages"]]
        assert said == ["why?", "so ", "not?"]


def test_the_end_of_input_at_a_terminal(no_leaks: None) -> None:
    with stub_server() as stub, Terminal("chat", "--url", stub.url) as terminal:
        assert "Ctrl-D ends" in terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.wait_for_end() == 0
