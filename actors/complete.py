"""`ringpost complete`: one answer, streamed to the terminal, with an engine that lives as long as the command."""

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.sampling import SamplingParams
from .config import add_engine_arguments, engine_config, engine_options
from .frontend.async_llm import AsyncLLM
from .frontend.input_processor import Prompt
from .logs import configure_logging
from .loops import loop_factory
from .sampling_options import add_sampling_arguments, sampling_params
from .supervisor import ProcessInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("prompt", metavar="PROMPT", help="text to go on from")
    parser.add_argument("--model", default="smollm2", help="alias, directory, .gguf file or hub id (default: %(default)s)")
    parser.add_argument("--chat", action="store_true", help="put the prompt to the model as a user's message")
    parser.add_argument("--stats", action="store_true", help="print the processes, time to first token and tokens/s")
    add_sampling_arguments(parser, max_tokens=128)
    add_engine_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Body of the command; returns its exit code."""
    params = sampling_params(arguments)
    config = engine_config(**engine_options(arguments))
    configure_logging("frontend0", config.runtime)
    with asyncio.Runner(loop_factory=loop_factory(config.runtime)) as runner:
        runner.run(complete(config, arguments.prompt, params, chat=arguments.chat, stats=arguments.stats))
    return 0


async def complete(config: EngineConfig, prompt: str, params: SamplingParams, *, chat: bool, stats: bool) -> None:
    """Print the answer as it comes. Raises what AsyncLLM raises."""
    started = time.monotonic()
    async with AsyncLLM(config) as engine:
        ready = time.monotonic()
        question: Prompt = await engine.chat_prompt([{"role": "user", "content": prompt}]) if chat else prompt
        times: list[float] = []
        async for output in engine.generate(question, msgspec.structs.replace(params, output_kind="delta")):
            times.append(time.monotonic())
            sys.stdout.write(output.outputs[0].text)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
        if stats:
            tokens = output.metrics.num_generation_tokens
            _print_stats(engine.process_table(), ready - started, times[0] - ready, tokens, times[-1] - times[0])


def _print_stats(processes: list[ProcessInfo], start: float, first: float, tokens: int, rest: float) -> None:
    rows = [("ACTOR", "KIND", "PID", "MEMORY", "READY AFTER", "")]
    for process in processes:
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in process.phases.items())
        ready = f"{process.ready_seconds:.2f} s" if process.ready_seconds else "-"
        rows.append((process.actor, process.kind, str(process.pid), f"{_resident(process.pid)} MB", ready, phases))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]]).rstrip() for row in rows
    ]
    rate = f", {(tokens - 1) / rest:.1f} tokens/s after it" if tokens > 1 and rest > 0 else ""
    summary = f"engine ready in {start:.2f} s; first of {tokens} tokens after {first * 1000:.0f} ms{rate}"
    sys.stderr.write("\n".join(["", *lines, "", summary, ""]))


def _resident(pid: int) -> int:
    """Resident memory of a process in MB, shared pages included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
