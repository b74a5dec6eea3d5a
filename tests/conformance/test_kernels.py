"""Every kernel set against the reference, on random shapes: tight in float32, loose in bfloat16."""

import os

# Triton decides whether it interprets when it is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ringpost.kernels import reference
from ringpost.kernels.interface import AttentionBatch, KernelSet
from ringpost.kernels.select import KERNEL_SETS, select_kernels

DTYPES = (torch.float32, torch.bfloat16)
# Hypothesis draws shapes; values come from torch, from the seed it draws too.
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=KERNEL_SETS)
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return select_kernels(request.param)


def close(actual: Tensor, expected: Tensor) -> None:
    loose = expected.dtype == torch.bfloat16
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=3e-2 if loose else 1e-5, atol=3e-2 if loose else 2e-6)


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


seeds = st.integers(0, 2**31).map(lambda seed: torch.Generator().manual_seed(seed))


def test_the_reference_is_what_is_called_so() -> None:
    modules: list[KernelSet] = [reference]
    assert modules == [select_kernels("reference")]
    with pytest.raises(ValueError, match="kernel set must be one of reference, cpu, triton, got 'cuda'"):
        select_kernels("cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@given(generator=seeds, rows=st.integers(1, 5), width=st.integers(1, 70))
@few
def test_norms(kernels: KernelSet, dtype: torch.dtype, generator: torch.Generator, rows: int, width: int) -> None:
    x, residual = (normal(generator, rows, width, dtype=dtype) for _ in range(2))
    weight = normal(generator, width, dtype=dtype)
    close(kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-5)
    expected_normed, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5)
    close(normed, expected_normed)
    close(total, expected_total)


@pytest.mark.parametrize("dtype", DTYPES)
@given(generator=seeds, rows=st.integers(1, 5), heads=st.integers(1, 4), half=st.integers(1, 20))
@few
def test_rotary_and_gate(
    kernels: KernelSet, dtype: torch.dtype, generator: torch.Generator, rows: int, heads: int, half: int
) -> None:
    # A part of a wider tensor, as the model passes it.
    x = normal(generator, rows, heads + 2, 2 * half, dtype=dtype)
    kept = x.clone()
    positions = torch.randint(0, 50, (rows,), generator=generator)
    angles = torch.rand((50, half), generator=generator) * 7
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    close(kernels.rotary(x[:, :heads], positions, cos_sin), reference.rotary(x[:, :heads], positions, cos_sin))
    flat = x.flatten(1)
    close(kernels.silu_and_mul(flat), reference.silu_and_mul(flat))
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@given(generator=seeds, rows=st.integers(0, 40), inner=st.integers(1, 70), outer=st.integers(1, 70))
@few
def test_linear(
    kernels: KernelSet, dtype: torch.dtype, bias: bool, generator: torch.Generator, rows: int, inner: int, outer: int
) -> None:
    x = normal(generator, rows, inner, dtype=dtype)
    weight = normal(generator, outer, inner, dtype=dtype) / inner**0.5
    shift = normal(generator, outer, dtype=dtype) if bias else None
    packed = kernels.pack_linear(weight.clone())
    expected = reference.linear(x, reference.pack_linear(weight), shift)
    close(kernels.linear(x, packed, shift), expected)
    assert (packed.out_features, packed.in_features) == (outer, inner)


@st.composite
def attention_cases(draw: st.DrawFn) -> tuple[AttentionBatch, int, int, int, int, torch.Generator]:
    """A mixed batch whose rows own distinct blocks in random order, with the sizes of heads."""
    block_size = draw(st.sampled_from((1, 4, 16)))
    counts = draw(st.lists(st.one_of(st.just(1), st.integers(1, 40)), min_size=1, max_size=9))
    starts = [draw(st.one_of(st.just(0), st.integers(0, 90))) for _ in counts]
    needed = [-(-(start + count) // block_size) for start, count in zip(starts, counts, strict=True)]
    free = np.random.default_rng(draw(st.integers(0, 2**31))).permutation(sum(needed) + 3).astype(np.int32)
    # Beyond a row's own blocks the table holds what may come: here an id that would be out of range.
    table = np.full((len(counts), max(needed)), 10**6, dtype=np.int32)
    first = 0
    for row, number in enumerate(needed):
        table[row, :number] = free[first : first + number]
        first += number
    batch = AttentionBatch(table, np.array(starts), np.array(counts))
    return batch, len(free), block_size, draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(seeds)


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=attention_cases())
@settings(few, max_examples=30)
def test_attention(
    kernels: KernelSet, dtype: torch.dtype, case: tuple[AttentionBatch, int, int, int, int, torch.Generator]
) -> None:
    batch, num_blocks, block_size, kv_heads, groups, generator = case
    head_dim, tokens = 16, int(batch.counts.sum())
    q = normal(generator, tokens, kv_heads * groups, head_dim, dtype=dtype)
    caches = [normal(generator, num_blocks, kv_heads, block_size, head_dim, dtype=dtype) for _ in range(2)]
    # Blocks of nobody must not matter, whatever they hold.
    used = {int(block) for row in batch.block_table for block in row}
    for cache in caches:
        cache[[block for block in range(num_blocks) if block not in used]] = float("nan")
    plan = kernels.plan_attention(batch, num_kv_heads=kv_heads, block_size=block_size, dtype=dtype)
    expected_plan = reference.plan_attention(batch, num_kv_heads=kv_heads, block_size=block_size, dtype=dtype)
    actual = kernels.paged_attention(q, caches[0], caches[1], plan, 0.3)
    close(actual, reference.paged_attention(q, caches[0], caches[1], expected_plan, 0.3))


def test_many_decode_rows_of_unlike_lengths(kernels: KernelSet) -> None:
    """Enough rows and blocks for a set that works in batches to need several."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 700, (40,), generator=generator).numpy()
    table = np.random.default_rng(1).permutation(40 * 44).reshape(40, 44).astype(np.int32)
    batch = AttentionBatch(table, lengths - 1, np.ones(40, dtype=np.int64))
    q = torch.randn((40, 6, 8), generator=generator)
    keys, values = torch.randn((2, 40 * 44, 2, 16, 8), generator=generator)
    plan = kernels.plan_attention(batch, num_kv_heads=2, block_size=16, dtype=torch.float32)
    expected = reference.paged_attention(q, keys, values, batch, 0.35)
    close(kernels.paged_attention(q, keys, values, plan, 0.35), expected)


@given(generator=seeds, tokens=st.integers(1, 20), kv_heads=st.integers(1, 3), block_size=st.sampled_from((1, 4, 16)))
@few
def test_write_kv(kernels: KernelSet, generator: torch.Generator, tokens: int, kv_heads: int, block_size: int) -> None:
    slots = torch.randperm(30 * block_size, generator=generator)[:tokens]
    k, v = torch.randn((2, tokens, kv_heads, 8), generator=generator)
    caches = [torch.zeros((30, kv_heads, block_size, 8)) for _ in range(4)]
    kernels.write_kv(k, v, caches[0], caches[1], slots)
    reference.write_kv(k, v, caches[2], caches[3], slots)
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])
    first = int(slots[0])
    assert torch.equal(caches[0][first // block_size, :, first % block_size], k[0])
