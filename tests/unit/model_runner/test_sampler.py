"""The sampler against a plain one, token by token, and against the exact distribution."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringpost.ipc.messages.sampling import LOWEST_TEMPERATURE
from ringpost.kernels.select import select_kernels
from ringpost.model_runner.filters import apply_filters
from ringpost.model_runner.sampler import Sampler, SamplingBatch

SAMPLER = Sampler(select_kernels())


@dataclass(frozen=True)
class Row:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    greedy: bool = False


def batch(rows: list[Row]) -> SamplingBatch:
    return SamplingBatch(
        temperature=torch.tensor([0.0 if row.greedy else max(row.temperature, LOWEST_TEMPERATURE) for row in rows]),
        top_k=torch.tensor([row.top_k for row in rows]),
        top_p=torch.tensor([row.top_p for row in rows]),
        min_p=torch.tensor([row.min_p for row in rows]),
        seeds=torch.tensor([row.seed for row in rows]),
        positions=torch.tensor([row.position for row in rows]),
    )


def kept_tokens(scaled: list[float], row: Row) -> set[int]:
    """The filters, in plain Python."""
    best = max(scaled)
    kept = {i for i, value in enumerate(scaled) if row.min_p == 0 or math.exp(value - best) >= row.min_p}
    if row.top_k > 0:
        floor = sorted((scaled[i] for i in kept), reverse=True)[: row.top_k][-1]
        kept = {i for i in kept if scaled[i] >= floor}
    if row.top_p < 1:
        total, reached, floor = sum(math.exp(scaled[i] - best) for i in kept), 0.0, best
        for i in sorted(kept, key=lambda i: -scaled[i]):
            floor = scaled[i]
            reached += math.exp(scaled[i] - best) / total
            if reached >= row.top_p:
                break
        kept = {i for i in kept if scaled[i] >= floor}
    return kept


def plain_choice(logits: list[float], row: Row) -> int:
    if row.greedy:
        return logits.index(max(logits))
    scaled = [value / max(row.temperature, 0.01) for value in logits]
    noise = select_kernels("reference").gumbel_noise(torch.tensor([row.seed]), torch.tensor([row.position]), len(logits))[0]
    return max(kept_tokens(scaled, row), key=lambda i: (scaled[i] + float(noise[i]), -i))


# Logits on a grid, with ties; the limits between grid values, so that no rounding decides.
LOGITS = st.lists(st.integers(-60, 60).map(lambda n: n / 4), min_size=40, max_size=40)
ROWS = st.builds(
    Row,
    temperature=st.sampled_from((0.01, 0.25, 0.5, 1.0, 2.0)),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from((0.0123, 0.3123, 0.7123, 0.9123, 0.99123, 1.0)),
    min_p=st.sampled_from((0.0, 0.00123, 0.0712, 0.4123)),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 5000),
    greedy=st.booleans(),
)


@given(cases=st.lists(st.tuples(LOGITS, ROWS), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_choices_equal_a_plain_sampler(cases: list[tuple[list[float], Row]]) -> None:
    logits, rows = torch.tensor([values for values, _ in cases]), [row for _, row in cases]
    kept = logits.clone()
    chosen = SAMPLER.sample(logits, batch(rows)).tolist()
    assert chosen == [plain_choice(values, row) for values, row in cases]
    assert torch.equal(logits, kept)
    # Alone, each row gets what it got among the others.
    assert chosen == [int(SAMPLER.sample(logits[i : i + 1], batch([row]))[0]) for i, row in enumerate(rows)]


@given(values=LOGITS, row=ROWS)
@settings(max_examples=100, deadline=None)
def test_filters_keep_what_they_should(values: list[float], row: Row) -> None:
    scaled = torch.tensor([values])
    apply_filters(scaled, top_k=torch.tensor([row.top_k]), top_p=torch.tensor([row.top_p]), min_p=torch.tensor([row.min_p]))
    assert set(torch.nonzero(scaled[0].isfinite()).squeeze(-1).tolist()) == kept_tokens(values, row)


@pytest.mark.parametrize("top_p", [0.001, 0.5, 0.99, 0.999999])
def test_top_p_over_a_flat_vocabulary(top_p: float) -> None:
    """So flat that the largest few do not reach it, and all must be looked at."""
    vocab = 9000
    scaled = (torch.arange(vocab) / vocab / 100).flip(0).unsqueeze(0)
    probabilities = scaled[0].double().softmax(-1).cumsum(-1)
    apply_filters(scaled, top_k=torch.tensor([0]), top_p=torch.tensor([top_p]), min_p=torch.tensor([0.0]))
    wanted = int((probabilities < torch.tensor(top_p).double()).sum()) + 1
    assert int(scaled.isfinite().sum()) == pytest.approx(wanted, abs=1)


@pytest.mark.parametrize("draws", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("row", [Row(), Row(temperature=0.5), Row(top_k=3), Row(top_p=0.8), Row(min_p=0.2)])
def test_draws_follow_the_exact_distribution(row: Row, draws: int) -> None:
    """Chi-square over draws at different positions; the limit is passed once in a million runs with other seeds."""
    logits = torch.tensor([2.0, 1.5, 1.0, 0.2, -0.5, -1.0, 0.9, 1.4])
    counts = torch.zeros(len(logits), dtype=torch.int64)
    for seed in (3, 2**40 + 17):
        positions = [Row(row.temperature, row.top_k, row.top_p, row.min_p, seed, position) for position in range(draws // 2)]
        chosen = SAMPLER.sample(logits.expand(draws // 2, -1).contiguous(), batch(positions))
        counts += chosen.bincount(minlength=len(logits))
    scaled = (logits / row.temperature).tolist()
    kept = kept_tokens(scaled, row)
    expected = torch.tensor([value if i in kept else -math.inf for i, value in enumerate(scaled)]).softmax(-1) * draws
    assert int(counts[expected == 0].sum()) == 0
    possible = expected > 0
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    # Wilson and Hilferty's approximation of the quantile that a standard normal passes with 1e-6.
    freedom = int(possible.sum()) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3


def test_greedy_takes_the_first_of_the_likeliest_without_noise() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    assert SAMPLER.sample(logits, batch([Row(greedy=True, seed=5)])).tolist() == [1]
    assert SAMPLER.sample(logits.bfloat16(), batch([Row(greedy=True, seed=6)])).tolist() == [1]


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_pruning_changes_no_choice(spread: float) -> None:
    """Whether few or most tokens are in reach of the best, the choice is the argmax over all."""
    logits = torch.randn((8, 3000), generator=torch.Generator().manual_seed(1)) * spread
    rows = [Row(seed=row, position=row * 7) for row in range(8)]
    everything = batch(rows)
    noise = select_kernels().gumbel_noise(everything.seeds, everything.positions, 3000)
    assert SAMPLER.sample(logits, everything).tolist() == (logits + noise).argmax(-1).tolist()
