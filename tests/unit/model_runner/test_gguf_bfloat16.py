"""Rounding to bfloat16 in numpy, against torch."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ringpost.model_runner.checkpoint.gguf_tensors import to_bfloat16

EDGES = [
    0x0000_0000,
    0x8000_0000,
    0x3F80_8000,
    0x3F81_8000,
    0x3F80_8001,
    0x7F7F_FFFF,
    0x7F80_0000,
    0xFF80_0000,
    0x0000_8001,
]


def torch_bits(bits: list[int]) -> list[int]:
    values = torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32))
    return [int(bit) for bit in values.bfloat16().view(torch.uint16)]


def our_bits(bits: list[int]) -> list[int]:
    return [int(bit) for bit in to_bfloat16(np.array(bits, dtype=np.uint32).view(np.float32))]


def is_nan(bits: int) -> bool:
    return bits & 0x7FFF_FFFF > 0x7F80_0000


@given(st.lists(st.integers(0, 2**32 - 1).filter(lambda bits: not is_nan(bits)), min_size=1))
def test_every_number_rounds_as_in_torch(bits: list[int]) -> None:
    assert our_bits(bits) == torch_bits(bits)


def test_edges_round_as_in_torch() -> None:
    assert our_bits(EDGES) == torch_bits(EDGES)


@given(st.sampled_from([0x7F80_0000, 0xFF80_0000]), st.integers(1, 2**23 - 1))
def test_a_nan_stays_one(infinity: int, payload: int) -> None:
    (result,) = our_bits([infinity | payload])
    assert is_nan(result << 16)
