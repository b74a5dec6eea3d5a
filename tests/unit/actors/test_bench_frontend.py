"""`ringpost bench frontend`: figures for every kind of output, and a table of them."""

from pathlib import Path

import pytest
from tiny_checkpoint import write_tiny_llama

from ringpost.actors.benchmarks.frontend import Settings, cases, run_frontend_benchmark
from ringpost.actors.benchmarks.frontend_table import print_frontend_report


def test_every_case_has_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_tiny_llama(tmp_path / "tiny"))
    settings = Settings(model=model, streams=2, tokens=[1, 5], stop=["never said"], repeat=2)
    done: list[None] = []
    report = run_frontend_benchmark(settings, lambda: done.append(None))
    measured = [(result.output_kind, result.tokens) for result in report.results]
    assert measured == [(kind.value, tokens) for kind, tokens in cases(settings)]
    assert len(done) == len(report.results) == 6
    for result in report.results:
        assert len(result.repeats) == 2
        assert min(result.repeats) > 0
    print_frontend_report(report)
    table = capsys.readouterr().out
    for word in ("cumulative", "delta", "final_only", "2 streams"):
        assert word in table
