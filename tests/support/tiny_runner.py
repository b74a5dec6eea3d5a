"""A runner over a tiny random checkpoint, and plans for it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tiny_checkpoint import EOS_TOKEN_ID

from ringpost.ipc.messages.config import CacheConfig, Checkpoint, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from ringpost.ipc.messages.plans import NewRow, StepPlan
from ringpost.ipc.messages.results import StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner.runner import ModelRunner

GREEDY = SamplingParams(temperature=0.0)
BLOCK_SIZE = 16
MAX_LEN = 96
BLOCKS_PER_ROW = MAX_LEN // BLOCK_SIZE
ROWS = 4


def engine_config(directory: Path, rows: int = ROWS, **model: Any) -> EngineConfig:
    hf_config = json.loads((directory / "config.json").read_text())
    return EngineConfig(
        model=ModelConfig(**model),
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=SchedulerConfig(max_num_seqs=rows),
        parallel=ParallelConfig(num_threads=1),
        checkpoint=Checkpoint(
            directory=str(directory),
            architecture="LlamaForCausalLM",
            hf_config=hf_config,
            vocab_size=hf_config["vocab_size"],
            eos_token_ids=(EOS_TOKEN_ID,),
            max_model_len=MAX_LEN,
        ),
    )


def make_runner(directory: Path, rows: int = ROWS, **model: Any) -> ModelRunner:
    runner = ModelRunner(config=engine_config(directory, rows, **model))
    runner.init_cache(rows * BLOCKS_PER_ROW)
    return runner


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 260, (length,), generator=generator).tolist()


def new_row(row: int, tokens: Sequence[int], params: SamplingParams = GREEDY) -> NewRow:
    # Blocks run backwards, so that nothing works by their being in order.
    blocks = [(row + 1) * BLOCKS_PER_ROW - 1 - i for i in range(BLOCKS_PER_ROW)]
    return NewRow(row, row, list(tokens), len(tokens), blocks, params)


def plan(work: Sequence[tuple[int, int, int]], sample: Sequence[int], new: Sequence[NewRow] = (), **extra: Any) -> StepPlan:
    """A plan of (row, start, count) entries."""
    rows, starts, counts = (list(column) for column in zip(*work, strict=True)) if work else ([], [], [])
    return StepPlan(0, list(new), rows, starts, counts, [[] for _ in rows], list(sample), **extra)


def prefill(runner: ModelRunner, tokens: list[int], budget: int) -> StepResult:
    """Compute a prompt in row 0 in chunks, then sample."""
    new, start = [new_row(0, tokens)], 0
    while True:
        count = min(budget, len(tokens) - start)
        last = start + count == len(tokens)
        result = runner.execute(plan([(0, start, count)], [0] if last else [], new))
        if last:
            return result
        assert result.tokens == []
        new, start = [], start + count


def prefill_and_decode(runner: ModelRunner, new: list[NewRow], lengths: list[int], steps: int) -> list[list[int]]:
    everyone = list(range(len(new)))
    work = [(entry.row, 0, length) for entry, length in zip(new, lengths, strict=True)]
    produced = [[token] for token in runner.execute(plan(work, everyone, new)).tokens]
    for step in range(steps):
        work = [(entry.row, length + step, 1) for entry, length in zip(new, lengths, strict=True)]
        for tokens, token in zip(produced, runner.execute(plan(work, everyone)).tokens, strict=True):
            tokens.append(token)
    return produced
