"""The noise: Philox4x32-10 against its published vectors, and every set against a plain one."""

import math
import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringpost.kernels.interface import KernelSet
from ringpost.kernels.reference.noise import philox4x32, to_gumbel
from ringpost.kernels.select import KERNEL_SETS, select_kernels

ONES = 0xFFFFFFFF
# Counter, key and output of the known-answer tests published with Random123.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
U32 = st.integers(0, ONES)


@pytest.fixture(params=KERNEL_SETS)
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return select_kernels(request.param)


def plain_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10 in Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    return tuple(int(word) for word in philox4x32((c0, c1, c2, c3), (torch.tensor([key[0]]), torch.tensor([key[1]]))))


@pytest.mark.parametrize(("counter", "key", "output"), VECTORS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], output: tuple[int, ...]) -> None:
    assert plain_philox(counter, key) == output
    assert philox(counter, key) == output


@given(counter=st.tuples(U32, U32, U32, U32), key=st.tuples(U32, U32))
@settings(deadline=None)
def test_philox_equals_plain_integers(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    assert philox(counter, key) == plain_philox(counter, key)


def test_noise_spans_what_24_bits_can() -> None:
    low, high = (float(to_gumbel(torch.tensor([bits]))[0]) for bits in (ONES, 0))
    assert low == pytest.approx(-math.log(24 * math.log(2)), abs=1e-5)
    assert high == pytest.approx(25 * math.log(2), abs=1e-5)
    assert high - low < 20.2
    assert to_gumbel(torch.tensor([0x12345678])) == to_gumbel(torch.tensor([0x123456FF]))


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**20), vocab=st.integers(1, 50))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_is_that_of_seed_position_and_token(kernels: KernelSet, seed: int, position: int, vocab: int) -> None:
    noise = kernels.gumbel_noise(torch.tensor([1, seed]), torch.tensor([7, position]), vocab)
    assert (noise.shape, noise.dtype) == ((2, vocab), torch.float32)
    tokens = torch.arange(vocab).flip(0)
    chosen = kernels.gumbel_noise_at(torch.full((vocab,), seed), torch.full((vocab,), position), tokens)
    torch.testing.assert_close(chosen.flip(0), noise[1], rtol=1e-6, atol=1e-6)
    for token in {0, vocab // 2, vocab - 1}:
        bits = plain_philox((token // 4, position, 0, 0), (seed % 2**32, seed >> 32))[token % 4]
        w = ((bits >> 8) + 0.5) * 2.0**-24
        assert float(noise[1, token]) == pytest.approx(-math.log(-math.log1p(-w)), rel=1e-5, abs=1e-5)


def test_noise_has_the_moments_of_a_gumbel_variable(kernels: KernelSet) -> None:
    noise = kernels.gumbel_noise(torch.arange(50), torch.arange(50) * 3, 2000).double()
    assert float(noise.mean()) == pytest.approx(0.57722, abs=0.02)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.05)


@given(
    generator=st.integers(0, 2**31).map(lambda seed: torch.Generator().manual_seed(seed)),
    vocab_size=st.integers(1, 300) | st.sampled_from([8192, 8193, 20000]),
    spread=st.sampled_from([0.1, 3.0, 30.0]),
    temperatures=st.lists(st.sampled_from([0.0, 0.01, 0.7, 1.0, 5.0]), min_size=1, max_size=5),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_choices(
    kernels: KernelSet, generator: torch.Generator, vocab_size: int, spread: float, temperatures: list[float]
) -> None:
    """The same tokens as the definition, but where two are as good but for rounding."""
    rows = len(temperatures)
    logits = torch.randn((rows, vocab_size), generator=generator) * spread
    logits[:, ::3] = -math.inf
    logits[:, -1] = 0.5
    seeds = torch.randint(-(2**62), 2**62, (rows,), generator=generator)
    positions = torch.randint(0, 10000, (rows,), generator=generator)
    kept = logits.clone()
    temperature = torch.tensor(temperatures)
    chosen, their_logits = kernels.choose(logits, temperature, seeds, positions)
    reference = select_kernels("reference")
    expected, _ = reference.choose(logits, temperature, seeds, positions)
    drawn = (temperature > 0).unsqueeze(-1)
    values = logits / torch.where(temperature > 0, temperature, 1.0).unsqueeze(-1)
    values = torch.where(drawn, values + reference.gumbel_noise(seeds, positions, vocab_size), values)
    lost = values.gather(1, expected[:, None]) - values.gather(1, chosen[:, None])
    assert (lost.abs() <= 1e-5).all()
    assert chosen.dtype == torch.int64
    assert torch.equal(their_logits, logits.gather(1, chosen[:, None]).squeeze(1))
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [5, 100, 9000])
def test_choices_at_the_edges(kernels: KernelSet, temperature: float, size: int) -> None:
    """Of equals the first; a NaN before all; a row without a possible token gives some token."""
    some = torch.zeros(1, dtype=torch.int64)
    at = torch.tensor([temperature])
    logits = torch.full((1, size), -3.0)
    logits[0, size - 2 :] = 40.0 if temperature else 2.0
    if not temperature:
        assert kernels.choose(logits, at, some, some)[0].tolist() == [size - 2]
    logits[0, size // 2] = math.nan
    assert kernels.choose(logits, at, some, some)[0].tolist() == [size // 2]
    logits[0] = -math.inf
    assert 0 <= int(kernels.choose(logits, at, some, some)[0]) < size
    logits[0, size - 1] = -5.0
    assert kernels.choose(logits, at, some, some)[0].tolist() == [size - 1]
    logits[0, 1] = math.inf
    assert kernels.choose(logits, at, some, some)[0].tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(
    generator=st.integers(0, 2**31).map(lambda seed: torch.Generator().manual_seed(seed)),
    vocab_size=st.sampled_from([1, 16, 63, 64, 65, 1000]),
    temperatures=st.lists(st.sampled_from([0.0, 0.7, 1.0]), min_size=1, max_size=40),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_choices_among_products(
    kernels: KernelSet, dtype: torch.dtype, generator: torch.Generator, vocab_size: int, temperatures: list[float]
) -> None:
    rows = len(temperatures)
    x = torch.randn((rows, 32), generator=generator).to(dtype)
    packed = kernels.pack_linear(torch.randn((vocab_size, 32), generator=generator).to(dtype))
    temperature = torch.tensor(temperatures)
    seeds = torch.arange(rows)
    tokens, chosen = kernels.choose_product(x, packed, temperature, seeds, seeds)
    logits = kernels.logits(x, packed)
    expected, _ = kernels.choose(logits, temperature, seeds, seeds)
    assert torch.equal(tokens, expected)
    assert torch.equal(chosen, logits.gather(1, tokens[:, None]).squeeze(1))
    x[0, 0] = math.nan
    assert kernels.choose_product(x, packed, temperature, seeds, seeds)[1][0].isnan()
