"""Every kernel set's products with quantised weights against the reference, and what quantising is."""

import os

# Triton decides whether it interprets when it is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ringpost.kernels import reference
from ringpost.kernels.interface import KernelSet
from ringpost.kernels.quantized import GROUP, QUANTIZATIONS, concatenate, dequantize, quantize
from ringpost.kernels.select import KERNEL_SETS, select_kernels

DTYPES = (torch.float32, torch.bfloat16)
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**31).map(lambda seed: torch.Generator().manual_seed(seed))
quantizations = pytest.mark.parametrize("quantization", QUANTIZATIONS)


@pytest.fixture(params=KERNEL_SETS)
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return select_kernels(request.param)


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


@quantizations
@given(generator=seeds, outer=st.integers(1, 40), groups=st.integers(1, 5), exponent=st.integers(-8, 8))
@few
def test_values_are_as_near_as_their_steps_allow(
    quantization: str, generator: torch.Generator, outer: int, groups: int, exponent: int
) -> None:
    weight = normal(generator, outer, groups * GROUP, dtype=torch.float32) * 2.0**exponent
    weight[0] = 0
    quantized = quantize(weight, quantization)
    step = quantized.scales.float().repeat_interleave(GROUP, dim=1)
    # Scales are rounded to eleven bits, and a value at the end of the range is at most 127 or 15 of them away.
    assert ((dequantize(quantized) - weight).abs() <= 0.6 * step + 1e-6).all()
    assert (dequantize(quantized)[0] == 0).all()
    least, most = (-127, 127) if quantization == "int8" else (0, 15)
    assert quantized.values.min() >= least
    assert quantized.values.max() <= most


@quantizations
def test_what_was_quantised_in_pieces_is_the_whole(quantization: str) -> None:
    weight = normal(torch.Generator().manual_seed(1), 50, 2 * GROUP, dtype=torch.bfloat16)
    whole = quantize(weight, quantization)
    pieces = concatenate([quantize(part, quantization) for part in torch.split(weight, [7, 30, 13])])
    assert torch.equal(dequantize(whole), dequantize(pieces))


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(ValueError, match="inputs of quantised weights must be a multiple of 32, got 33"):
        quantize(torch.zeros(2, 33), "int8")
    with pytest.raises(ValueError, match="quantization must be int8 or int4, got 'int2'"):
        quantize(torch.zeros(2, 32), "int2")


@quantizations
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@given(generator=seeds, rows=st.integers(0, 70), groups=st.integers(1, 37), outer=st.integers(1, 70))
@few
def test_products(
    kernels: KernelSet,
    quantization: str,
    dtype: torch.dtype,
    bias: bool,
    generator: torch.Generator,
    rows: int,
    groups: int,
    outer: int,
) -> None:
    inner = groups * GROUP
    x = normal(generator, rows, inner, dtype=dtype)
    weight = normal(generator, outer, inner, dtype=dtype) / inner**0.5
    shift = normal(generator, outer, dtype=dtype) if bias else None
    packed = kernels.pack_linear(weight, quantization)
    assert (packed.out_features, packed.in_features) == (outer, inner)
    # A set may round activations to eight bits a group: then a product is off by about a hundredth of a usual one.
    wanted = reference.logits(x, reference.pack_linear(weight, quantization))
    torch.testing.assert_close(kernels.logits(x, packed), wanted, rtol=3e-2, atol=6e-2)
    expected = reference.linear(x, reference.pack_linear(weight, quantization), shift)
    actual = kernels.linear(x, packed, shift)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=3e-2, atol=8e-2)
    assert torch.equal(
        kernels.logits(x, kernels.pack_quantized(quantize(weight, quantization), dtype)), kernels.logits(x, packed)
    )


@quantizations
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_whole_numbers_are_exact_in_c(quantization: str, dtype: torch.dtype) -> None:
    """Where neither weights nor activations are rounded, nothing is."""
    kernels, generator = select_kernels("cpu"), torch.Generator().manual_seed(2)
    for rows in (1, 2, 7, 8, 9, 16, 33):
        x = torch.randint(-127, 128, (rows, 18 * GROUP), generator=generator)
        x[:, ::GROUP] = 127  # the scale of each group is one
        weight = torch.randint(0, 16, (50, 18 * GROUP), generator=generator)
        weight[:, ::GROUP], weight[:, 1::GROUP] = 0, 15
        if quantization == "int8":
            weight = weight * 16 - 120
            weight[:, ::GROUP] = 127
        packed = kernels.pack_linear(weight.to(dtype), quantization)
        exact = (x @ weight.T).float()
        assert ((kernels.logits(x.to(dtype), packed) - exact).abs() <= 1e-5 * exact.abs() + 0.2).all()


@quantizations
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others_in_c(quantization: str, dtype: torch.dtype) -> None:
    kernels, generator = select_kernels("cpu"), torch.Generator().manual_seed(3)
    x = normal(generator, 70, 18 * GROUP, dtype=dtype)
    packed = kernels.pack_linear(normal(generator, 90, 18 * GROUP, dtype=dtype), quantization)
    alone = torch.cat([kernels.logits(row, packed) for row in torch.split(x, 1)])
    for rows in (2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 48, 70):
        assert torch.equal(kernels.logits(x[:rows], packed), alone[:rows]), rows


@quantizations
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rows", [1, 20])
def test_what_is_not_finite_stays_so_and_touches_no_other_row(
    kernels: KernelSet, quantization: str, value: float, rows: int
) -> None:
    generator = torch.Generator().manual_seed(4)
    x = normal(generator, rows, 4 * GROUP, dtype=torch.float32)
    weight = normal(generator, 40, 4 * GROUP, dtype=torch.float32)
    packed = kernels.pack_linear(weight, quantization)
    before = kernels.logits(x, packed)
    x[0, 70] = value
    after = kernels.logits(x, packed)
    assert not after[0].isfinite().any()
    assert torch.equal(after[1:], before[1:])


@quantizations
def test_the_c_kernels_keep_them_small(quantization: str) -> None:
    packed = select_kernels("cpu").pack_linear(torch.ones(512, 576), quantization)
    assert packed.nbytes / (512 * 576) <= (1.07 if quantization == "int8" else 0.63)
