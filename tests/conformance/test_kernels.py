"""Every kernel set against the reference, on random shapes: tight in float32, loose in bfloat16."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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
    torch.testing.assert_close(actual, expected, rtol=3e-2 if loose else 1e-5, atol=3e-2 if loose else 5e-6)


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


seeds = st.integers(0, 2**31).map(lambda seed: torch.Generator().manual_seed(seed))


def test_the_reference_is_what_is_called_so() -> None:
    modules: list[KernelSet] = [reference]
    assert modules == [select_kernels("reference")]
    with pytest.raises(ValueError, match="kernel set must be one of reference, torch_ops, cpu, triton, got 'cuda'"):
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
    wide = reference.logits(x, reference.pack_linear(weight))
    torch.testing.assert_close(kernels.logits(x, packed), wide, rtol=1e-2, atol=1e-2 if dtype == torch.bfloat16 else 1e-5)
    expected = reference.linear(x, reference.pack_linear(weight), shift)
    close(kernels.linear(x, packed, shift), expected)
    assert (packed.out_features, packed.in_features) == (outer, inner)


@dataclass(frozen=True)
class AttentionCase:
    """A mixed batch whose rows own distinct blocks in random order, with the sizes of heads."""

    batch: AttentionBatch
    num_blocks: int
    block_size: int
    kv_heads: int
    groups: int
    head_dim: int
    generator: torch.Generator


def attention_case(
    counts: list[int], starts: list[int], *, block_size: int, kv_heads: int, groups: int, head_dim: int, seed: int
) -> AttentionCase:
    needed = [-(-(start + count) // block_size) for start, count in zip(starts, counts, strict=True)]
    free = np.random.default_rng(seed).permutation(sum(needed) + 3).astype(np.int32)
    # Beyond a row's own blocks the table holds what may come: here an id that would be out of range.
    table = np.full((len(counts), max(needed)), 10**6, dtype=np.int32)
    first = 0
    for row, number in enumerate(needed):
        table[row, :number] = free[first : first + number]
        first += number
    batch = AttentionBatch(table, np.array(starts), np.array(counts))
    return AttentionCase(batch, len(free), block_size, kv_heads, groups, head_dim, torch.Generator().manual_seed(seed))


@st.composite
def attention_cases(draw: st.DrawFn) -> AttentionCase:
    counts = draw(st.lists(st.one_of(st.just(1), st.integers(1, 40)), min_size=1, max_size=9))
    return attention_case(
        counts,
        [draw(st.one_of(st.just(0), st.integers(0, 90), st.integers(240, 270))) for _ in counts],
        block_size=draw(st.sampled_from((1, 4, 16, 32))),
        kv_heads=draw(st.integers(1, 3)),
        groups=draw(st.integers(1, 5)),
        head_dim=draw(st.sampled_from((8, 16, 64, 96))),
        seed=draw(st.integers(0, 2**31)),
    )


def attended(kernels: KernelSet, case: AttentionCase, dtype: torch.dtype) -> Tensor:
    """Attention over a cache that the set has written itself; its order inside a block is its own affair."""
    case.generator.manual_seed(case.generator.initial_seed())
    batch, size = case.batch, case.block_size
    q = normal(case.generator, int(batch.counts.sum()), case.kv_heads * case.groups, case.head_dim, dtype=dtype)
    # Blocks of nobody must not matter, whatever they hold.
    caches = [torch.full((case.num_blocks, case.kv_heads, size, case.head_dim), float("nan"), dtype=dtype) for _ in range(2)]
    ends = batch.starts + batch.counts
    used = [int(block) for row, end in enumerate(ends) for block in batch.block_table[row, : -(-int(end) // size)]]
    for cache in caches:
        cache[used] = 0.0
    slots = [
        int(batch.block_table[row, at // size]) * size + at % size for row, end in enumerate(ends) for at in range(int(end))
    ]
    keys, values = (normal(case.generator, len(slots), case.kv_heads, case.head_dim, dtype=dtype) for _ in range(2))
    kernels.write_kv(keys, values, caches[0], caches[1], torch.tensor(slots))
    plan = kernels.plan_attention(batch, num_kv_heads=case.kv_heads, head_dim=case.head_dim, block_size=size, dtype=dtype)
    return kernels.paged_attention(q, caches[0], caches[1], plan, 0.3)


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=attention_cases())
@settings(few, max_examples=30)
def test_attention(kernels: KernelSet, dtype: torch.dtype, case: AttentionCase) -> None:
    close(attended(kernels, case, dtype), attended(reference, case, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 64])
def test_many_decode_rows_of_unlike_lengths(kernels: KernelSet, dtype: torch.dtype, head_dim: int) -> None:
    """Enough rows and blocks for a set that works in batches to need several."""
    lengths = np.random.default_rng(1).integers(1, 700, 40).tolist()
    case = attention_case(
        [1] * 40, [length - 1 for length in lengths], block_size=16, kv_heads=2, groups=3, head_dim=head_dim, seed=1
    )
    close(attended(kernels, case, dtype), attended(reference, case, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_contexts(kernels: KernelSet, dtype: torch.dtype) -> None:
    """Long enough for a set that divides a context to do so, beside a short one and a chunk of a prompt."""
    case = attention_case([1, 1, 70, 1], [3000, 5, 2500, 1024], block_size=16, kv_heads=2, groups=3, head_dim=64, seed=2)
    close(attended(kernels, case, dtype), attended(reference, case, dtype))


def test_a_number_that_is_none_in_the_own_cache_is_seen(kernels: KernelSet) -> None:
    """Whoever looks at the result has to learn of it."""
    case = attention_case([1, 3], [20, 40], block_size=16, kv_heads=1, groups=2, head_dim=16, seed=3)
    caches = torch.zeros((2, case.num_blocks, 1, 16, 16))
    first = int(case.batch.block_table[0, 0]) * 16
    keys = torch.ones((1, 1, 16))
    kernels.write_kv(keys * float("nan"), keys, caches[0], caches[1], torch.tensor([first]))
    plan = kernels.plan_attention(case.batch, num_kv_heads=1, head_dim=16, block_size=16, dtype=torch.float32)
    result = kernels.paged_attention(torch.ones((4, 2, 16)), caches[0], caches[1], plan, 0.3)
    assert result[0].isnan().all()
    assert result[1:].isfinite().all()


def test_scores_of_minus_infinity_are_seen(kernels: KernelSet) -> None:
    """A row that can attend to nothing has no result, and whoever looks at it learns of it."""
    case = attention_case([1], [4], block_size=16, kv_heads=1, groups=1, head_dim=16, seed=4)
    caches = torch.zeros((2, case.num_blocks, 1, 16, 16))
    slots = int(case.batch.block_table[0, 0]) * 16 + torch.arange(5)
    keys = torch.full((5, 1, 16), float("-inf"))
    kernels.write_kv(keys, torch.ones((5, 1, 16)), caches[0], caches[1], slots)
    plan = kernels.plan_attention(case.batch, num_kv_heads=1, head_dim=16, block_size=16, dtype=torch.float32)
    result = kernels.paged_attention(torch.ones((1, 1, 16)), caches[0], caches[1], plan, 0.3)
    # Torch's fused attention gives zeros, which nobody can change.
    assert (result == 0).all() if kernels is select_kernels("torch_ops") else result.isnan().all()


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_several_threads_may_call(kernels: KernelSet, quantization: str | None) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn((3, 64), generator=generator)
    packed = [kernels.pack_linear(torch.randn((300, 64), generator=generator), quantization) for _ in range(4)]
    expected = [kernels.logits(x, weight) for weight in packed]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda at: kernels.logits(x, packed[at % 4]), range(200)))
    assert all(torch.equal(result, expected[at % 4]) for at, result in enumerate(results))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_what_cannot_be_quantised_is_refused(kernels: KernelSet, quantization: str, bad: float) -> None:
    weight = torch.ones((4, 64))
    weight[2, 40] = bad
    with pytest.raises(ValueError, match=f"cannot be quantised to {quantization}"):
        kernels.pack_linear(weight, quantization)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_a_row_of_a_product_does_not_depend_on_the_others(dtype: torch.dtype, quantization: str | None) -> None:
    """Of the C kernels alone; others choose the order of a sum by the size of the batch."""
    kernels = select_kernels("cpu")
    generator = torch.Generator().manual_seed(6)
    x = normal(generator, 70, 96, dtype=dtype)
    packed = kernels.pack_linear(normal(generator, 200, 96, dtype=dtype), quantization)
    together = kernels.logits(x, packed)
    for first, count in ((0, 1), (1, 2), (3, 7), (10, 16), (20, 33), (69, 1)):
        assert torch.equal(kernels.logits(x[first : first + count], packed), together[first : first + count])


def test_attention_of_a_request_does_not_depend_on_the_others() -> None:
    kernels = select_kernels("cpu")
    lengths = [5, 300, 1500, 64]
    case = attention_case([1] * 4, lengths, block_size=16, kv_heads=2, groups=3, head_dim=64, seed=7)
    together = attended(kernels, case, torch.float32)
    q = normal(case.generator.manual_seed(7), 4, 6, 64, dtype=torch.float32)
    caches = torch.zeros((2, case.num_blocks, 2, 16, 64))
    slots = [
        int(case.batch.block_table[row, at // 16]) * 16 + at % 16 for row, end in enumerate(lengths) for at in range(end + 1)
    ]
    keys, values = (normal(case.generator, len(slots), 2, 64, dtype=torch.float32) for _ in range(2))
    kernels.write_kv(keys, values, caches[0], caches[1], torch.tensor(slots))
    for row in range(4):
        alone = AttentionBatch(
            case.batch.block_table[row : row + 1], case.batch.starts[row : row + 1], np.ones(1, dtype=np.int64)
        )
        plan = kernels.plan_attention(alone, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.float32)
        assert torch.equal(kernels.paged_attention(q[row : row + 1], caches[0], caches[1], plan, 0.3)[0], together[row])
