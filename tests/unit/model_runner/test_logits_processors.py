"""Custom logits processors: how they are named, what they are told, and who fails when they do."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from source_tree import ROOT
from tiny_checkpoint import write_tiny_llama
from tiny_runner import GREEDY, make_runner, new_row, plan, prefill_and_decode, prompt
from torch import Tensor

from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.plans import NewRow
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner.logits_processor import BatchUpdate, LogitsProcessor
from ringpost.model_runner.processor_loading import load_processors, validate_params
from ringpost.model_runner.runner import ModelRunner


class Recorder(LogitsProcessor):
    """Notes what it is told; forces the token of extra_args, or fails as they say."""

    made: "list[Recorder]" = []

    def __init__(self, config: EngineConfig, invariant: bool = False, broken: bool = False) -> None:
        self.invariant, self.broken = invariant, broken
        self.updates: list[BatchUpdate | None] = []
        self.applied: list[list[int]] = []
        self.outputs: dict[int, Any] = {}
        self.args: dict[int, dict[str, Any]] = {}
        self.made.append(self)

    def is_argmax_invariant(self) -> bool:
        return self.invariant

    def update_state(self, update: BatchUpdate | None) -> None:
        if self.broken:
            raise RuntimeError("broken")
        self.updates.append(update)
        for row in update.removed if update else []:
            del self.outputs[row], self.args[row]
        for added in update.added if update else []:
            args = dict(added.params.extra_args or {})
            if "refuse" in args:
                raise KeyError("refused")
            self.args[added.row] = args
            self.outputs[added.row] = added.output_ids
            assert isinstance(added.prompt_ids, list)

    def apply(self, logits: Tensor, rows: Tensor) -> Tensor:
        self.applied.append(rows.tolist())
        assert logits.dtype == torch.float32
        for index, row in enumerate(rows.tolist()):
            args = self.args[row]
            if "raise" in args:
                raise KeyError("raised")
            if "shape" in args:
                return logits[:, :5]
            if "value" in args:
                logits[index, 9] = float(args["value"])
            if "force" in args:
                kept = logits[index, args["force"]].item()
                logits[index] = float("-inf")
                logits[index, args["force"]] = kept
            if "alternate" in args:  # by what has been said
                logits[index, 20 + len(self.outputs[row]) % 2] += 1000
        return logits


class NoMethods:
    """Not even one."""


class NoApply(LogitsProcessor):
    """As it is derived."""


PATH = "own_processors.Recorder"


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    own = ModuleType("own_processors")
    own.__dict__.update(Recorder=Recorder, NoMethods=NoMethods, NoApply=NoApply)
    monkeypatch.setitem(sys.modules, "own_processors", own)
    Recorder.made.clear()
    yield own
    Recorder.made.clear()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def runner_with(directory: Path, *entries: str) -> tuple[ModelRunner, list[Recorder]]:
    runner = make_runner(directory, logits_processors=entries)
    return runner, Recorder.made


def told(one: Recorder) -> list[tuple[list[int], list[int]] | None]:
    """The rows that were removed and added, of each update."""
    return [None if update is None else ([*update.removed], [added.row for added in update.added]) for update in one.updates]


def asking(temperature: float = 0, **extra: Any) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=3, extra_args=extra)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("Recorder", "must be an import path like 'package.module.Class', got 'Recorder'"),
        ("", "must be an import path like 'package.module.Class', got ''"),
        ("no_such_package.Own {}", "'no_such_package.Own' cannot be imported: .* it is looked for in installed packages"),
        ("own_processors.Missing", "'own_processors.Missing' cannot be imported: .*Missing"),
        ("own_processors.NoMethods", "'own_processors.NoMethods' is no .*LogitsProcessor; it lacks validate_params, is_arg"),
        ("own_processors.NoApply", "'own_processors.NoApply' is no .*LogitsProcessor; it lacks apply$"),
        (PATH + " {", r"entry 'own_processors.Recorder \{': what follows the path must be a JSON object, as in .*name"),
        (PATH + " [1]", r"entry 'own_processors.Recorder \[1\]': what follows the path must be a JSON object"),
        (PATH + ' {"x": 1}', r"entry 'own_processors.Recorder \{\"x\": 1\}' cannot be made: TypeError.*'x'"),
    ],
)
def test_a_wrong_entry_is_named(directory: Path, entry: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"logits_processors {message}"):
        runner_with(directory, entry)


@pytest.mark.parametrize("source", ["x = 1 / 0", "raise SystemExit(3)", "def ("])
def test_a_module_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "failing_at_import.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=r"logits_processors 'failing_at_import.Own' cannot be imported, its module fails with \w"
    ):
        load_processors(["failing_at_import.Own"])


def test_arguments_reach_the_constructor(directory: Path) -> None:
    _, made = runner_with(directory, PATH, PATH + '  {"invariant": true} ')
    assert [one.invariant for one in made] == [False, True]


def test_parameters_are_looked_at_by_every_class(module: ModuleType) -> None:
    class Picky(Recorder):
        @classmethod
        def validate_params(cls, params: SamplingParams) -> None:
            if "force" in (params.extra_args or {}):
                raise ValueError("no force")

    module.__dict__["Picky"] = Picky
    processors = load_processors([PATH, "own_processors.Picky"])
    validate_params(processors, asking(other=1))
    with pytest.raises(ValueError, match="no force"):
        validate_params(processors, asking(force=1))
    assert Recorder.made == []


def test_they_are_told_who_comes_and_goes(directory: Path) -> None:
    runner, (one,) = runner_with(directory, PATH)
    runner.execute(plan([(0, 0, 9), (2, 0, 5)], [0, 1], [new_row(0, prompt(9), asking(a=1)), new_row(2, prompt(5))]))
    assert told(one) == [([], [0]), ([], [2])]
    assert [added.prompt_ids for update in one.updates for added in (update.added if update else [])] == [prompt(9), prompt(5)]
    assert one.args == {0: {"a": 1}, 2: {}}
    first = runner.execute(plan([(2, 5, 1), (0, 9, 1)], [0, 1])).tokens
    assert told(one)[2:] == [None]
    assert one.applied == [[0, 2], [2, 0]]
    assert len(one.outputs[0]) == 2
    assert [one.outputs[2][-1], one.outputs[0][-1], [*one.outputs[0]][-1:]] == [*first, first[1:]]
    # Rows that get no token in a step are none of apply's; a row is taken from who had it.
    runner.execute(plan([(2, 0, 3), (0, 10, 1)], [1], [new_row(2, prompt(5))]))
    assert told(one)[3:] == [([2], []), ([], [2])]
    assert one.applied[-1] == [0]
    runner.reset()
    runner.execute(plan([(1, 0, 3)], [0], [new_row(1, prompt(3))]))
    assert told(one)[5:] == [([0], []), ([2], []), ([], [1])]


def test_their_order_is_that_of_the_entries(directory: Path) -> None:
    """The second sees what the first made."""
    runner, made = runner_with(directory, PATH, PATH)
    seen: list[float] = []

    def look(logits: Tensor, rows: Tensor) -> Tensor:
        seen.append(float(logits[0, 5]))
        return logits

    made[1].apply = look  # type: ignore[method-assign]
    runner.execute(plan([(0, 0, 9)], [0], [new_row(0, prompt(9), asking(force=7))]))
    assert seen == [float("-inf")]


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_choices_are_theirs(directory: Path, temperature: float) -> None:
    runner, _ = runner_with(directory, PATH)
    rows = [new_row(0, prompt(9), asking(temperature, force=11)), new_row(1, prompt(20), asking(temperature))]
    forced, free = prefill_and_decode(runner, rows, [9, 20], 3)
    assert forced == [11] * 4
    plain = make_runner(directory)
    assert prefill_and_decode(plain, rows[1:], [20], 3) == [free]


def test_the_invariant_ones_never_get_greedy_requests(directory: Path) -> None:
    """So a greedy request gets the same tokens alone and beside one that is not."""
    greedy, drawn = new_row(0, prompt(9), asking(force=7)), new_row(1, prompt(9), asking(1.0, force=7))
    plain = prefill_and_decode(make_runner(directory), [greedy], [9], 2)
    runner, (one,) = runner_with(directory, PATH + ' {"invariant": true}')
    assert prefill_and_decode(runner, [greedy], [9], 2) == plain
    assert one.applied == []
    assert prefill_and_decode(runner, [greedy, drawn], [9, 9], 2) == [*plain, [7] * 3]
    assert prefill_and_decode(runner, [drawn], [9], 0) == [[7]]
    assert one.applied == [[1]] * 4


def test_what_may_not_be_drawn_stays_out(directory: Path) -> None:
    runner, _ = runner_with(directory, PATH)
    extra = {"value": 500}  # of token 9
    params = [
        SamplingParams(temperature=0, extra_args=extra),
        SamplingParams(temperature=0, extra_args=extra, allowed_token_ids=[8, 10]),
        SamplingParams(temperature=0, extra_args=extra, bad_words_token_ids=[[9]]),
        SamplingParams(temperature=0, extra_args=extra, min_tokens=1, stop_token_ids=[9]),
    ]
    rows = [new_row(row, prompt(9), one) for row, one in enumerate(params)]
    tokens = runner.execute(plan([(row, 0, 9) for row in range(4)], [0, 1, 2, 3], rows)).tokens
    assert tokens[0] == 9
    assert tokens[1] in (8, 10)
    assert 9 not in tokens[1:]


@pytest.mark.parametrize(
    ("extra", "kind", "message"),
    [
        ({"raise": 1}, "LogitsProcessorError", r"Recorder.apply: KeyError\('raised'\)"),
        ({"refuse": 1}, "LogitsProcessorError", r"Recorder.update_state: KeyError\('refused'\)"),
        (
            {"shape": 1},
            "LogitsProcessorError",
            r"Recorder.apply must return float32 logits \[1, 268\], got .*float32 \[1, 5\]",
        ),
        ({"value": "nan"}, "LogitsProcessorError", "made a logit nan"),
        ({"value": "inf"}, "LogitsProcessorError", "made a logit inf"),
        ({"force": 9, "value": "-inf"}, "NoTokenLeft", "logits processors"),
    ],
)
def test_a_request_that_one_fails_for_fails_alone(directory: Path, extra: dict[str, Any], kind: str, message: str) -> None:
    runner, (one,) = runner_with(directory, PATH)
    rows = [new_row(0, prompt(9), asking(**extra)), new_row(1, prompt(20), asking(force=11)), new_row(2, prompt(20), GREEDY)]
    result = runner.execute(plan([(0, 0, 9), (1, 0, 20), (2, 0, 20)], [0, 1, 2], rows))
    assert [(failure.index, failure.kind) for failure in result.failures] == [(0, kind)]
    assert re.search(message, result.failures[0].message)
    assert result.tokens[1] == 11
    assert runner.execute(plan([(1, 20, 1)], [0])).tokens == [11]
    assert 0 not in one.outputs, "it is told that the row is gone"


def test_one_that_fails_whoever_runs_fails_all(directory: Path) -> None:
    runner, (one,) = runner_with(directory, PATH)
    runner.execute(plan([(0, 0, 9)], [0], [new_row(0, prompt(9))]))
    one.broken = True
    result = runner.execute(plan([(0, 9, 1)], [0]))
    assert [failure.kind for failure in result.failures] == ["LogitsProcessorError"]


def test_a_row_that_comes_back_goes_on_where_it_was(directory: Path) -> None:
    """As after a preemption or a restart: the new worker's processor finds the output in `output_ids`."""
    tokens, params = prompt(9), asking(alternate=1)
    whole = prefill_and_decode(runner_with(directory, PATH)[0], [new_row(0, tokens, params)], [9], 6)[0]
    assert whole == [20, 21, 20, 21, 20, 21, 20]
    for said in (1, 4):
        runner, made = runner_with(directory, PATH)
        back = NewRow(1, 5, tokens + whole[:said], 9, new_row(1, []).blocks, params)
        rest = prefill_and_decode(runner, [back], [9 + said], 6 - said)[0]
        assert rest == whole[said:]
        assert made[-1].outputs[1] == whole


def test_the_example_of_the_documentation(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "logits-processors.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    entry = re.search(r"--logits-processors '(.*)'", text)
    assert code
    assert entry
    (tmp_path / "forced_start.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    runner = make_runner(directory, logits_processors=(entry[1],))
    rows = [new_row(0, prompt(9), asking(start_ids=[31, 32, 33])), new_row(1, prompt(9))]
    started, free = prefill_and_decode(runner, rows, [9, 9], 3)
    assert started[:2] == [31, 32], "the argument cuts the list to two"
    assert free == prefill_and_decode(make_runner(directory), rows[1:], [9], 3)[0]
    processors = load_processors([entry[1]])
    validate_params(processors, asking(start_ids=[1]))
    with pytest.raises(ValueError, match=r"extra_args\['start_ids'\] must be a list of token ids, got 5"):
        validate_params(processors, asking(start_ids=5))
    monkeypatch.delitem(sys.modules, "forced_start")
