"""Fixtures for all tests: both event loops, a watchdog, and a check that a test leaves nothing behind."""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvloop
from api_client import Client
from faulty_engines import FaultyEngines
from leaks import Possessions, mark_descendants
from scripted_engine import ScriptedEngine
from served_app import AppClient, served
from servers import ServerProcess
from tiny_checkpoint import write_tiny_llama

from ringpost.ipc.messages.config import ModelConfig
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint

WATCHDOG_MARGIN = 60.0  # seconds after pytest-timeout should have ended the test
STDERR = pytest.StashKey[int]()  # the terminal's, which capturing does not replace


# Triton reads it when it is imported, which transformers does: the interpreter runs kernels where there is no GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare what the fixtures below rely on."""
    config.stash[STDERR] = os.dup(2)
    mark_descendants()
    # A shell's background jobs ignore it, and so would the programs that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The first uvloop of a process opens descriptors that libuv keeps: no leak of the test that happens to come first.
    uvloop.new_event_loop().close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with processes run on asyncio's loop only with full counts: each takes seconds, and the others cover that loop."""
    for item in items:
        if item.path.parent.name in ("process", "e2e") and ("[asyncio]" in item.name or "[asyncio-" in item.name):
            item.add_marker(pytest.mark.long)


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # libraries look at the end whether their objects have gone
    os.close(config.stash[STDERR])


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each test under `@pytest.mark.asyncio` once on either loop."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": _uvloop}


def _uvloop() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(_cancel_on_timeout)
    return loop


def _cancel_on_timeout(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the test that pytest-timeout failed: uvloop only logs what a signal handler raises."""
    loop.default_exception_handler(context)
    if isinstance(context.get("exception"), pytest.fail.Exception):
        for task in asyncio.all_tasks(loop):
            task.cancel("the test ran into its time limit")


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the run, with every thread's stack, when a test hangs where pytest-timeout's exception cannot reach."""
    marker = request.node.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker and marker.args else request.config.getini("timeout") or 0)
    if limit > 0 and not sys.gettrace():
        faulthandler.dump_traceback_later(limit + WATCHDOG_MARGIN, exit=True, file=request.config.stash[STDERR])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """The test leaves behind no open descriptor, no process and no file in /dev/shm.

    Name it before other fixtures, so that they are gone when it looks.
    """
    gc.collect()
    gc.freeze()  # what lives now was not left by this test; not to look at it again saves most of the time
    before = Possessions.now()
    yield
    gc.collect()
    left = before.left_behind()
    assert not left, f"left behind by the test: {'; '.join(left)}"


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Directory of the demo model, fetched and converted if this machine has not got it yet."""
    return resolve_checkpoint(ModelConfig()).directory


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a tiny model, for reading only."""
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def engine(tiny: str) -> ScriptedEngine:
    """An engine without processes, whose answers are in the hands of the test."""
    return ScriptedEngine(tiny)


@pytest_asyncio.fixture
async def api(engine: ScriptedEngine) -> AsyncIterator[AppClient]:
    """A client of the HTTP server over that engine."""
    async with served(engine) as client:
        yield client


@pytest_asyncio.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    """A client of the server that the test's module runs."""
    async with Client(server.url) as connected:
        yield connected


@pytest.fixture(scope="session")
def long_tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model that takes long prompts, for its tokenizer."""
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "long", max_position_embeddings=100_000))


@pytest.fixture
def engines(no_leaks: None, long_tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyEngines:
    """Engines with scripted workers and faults."""
    return FaultyEngines(long_tiny, tmp_path, monkeypatch)
