"""How many blocks the KV cache has: what the options say, what is free, and what a request of full length needs."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_checkpoint import tiny_config

from ringpost.ipc.messages.config import CacheConfig, EngineConfig, SchedulerConfig
from ringpost.model_runner import kv_cache
from ringpost.model_runner.kv_cache import bytes_per_block, max_blocks
from ringpost.model_runner.models.llama_shape import LlamaShape

BLOCK = 2 * 2 * 2 * 16 * 16 * 4  # layers, k and v, kv heads, tokens, head_dim, float32
LENGTH = 50  # tokens of a request at most: in 4 blocks of 16
ROWS = 4
PLENTY = 2**40
QUARTER = "by default a quarter of the free memory, at most 4294967296 bytes"


def blocks(free: int, *, length: int = LENGTH, **cache: Any) -> int:
    config = EngineConfig(cache=CacheConfig(**cache), scheduler=SchedulerConfig(max_num_seqs=ROWS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "available_memory", lambda: free)
        return max_blocks(config, LlamaShape.from_hf(tiny_config()), max_model_len=length, dtype=torch.float32)


def test_bytes_of_a_block() -> None:
    assert bytes_per_block(LlamaShape.from_hf(tiny_config()), block_size=16, dtype=torch.float32) == BLOCK


def test_a_size_in_bytes() -> None:
    assert blocks(7 * BLOCK, kv_cache_memory_bytes=7 * BLOCK + 5) == 7
    assert blocks(PLENTY, kv_cache_memory_bytes=100 * BLOCK) == 100  # more than rows fill: the prefix cache keeps it


@pytest.mark.parametrize(("fraction", "expected"), [(0.25, 10), (0.5, 20), (1.0, 40)])
def test_a_share_of_the_free_memory(fraction: float, expected: int) -> None:
    assert blocks(40 * BLOCK, kv_cache_memory_fraction=fraction) == expected


def test_by_default_a_quarter_of_the_free_memory() -> None:
    assert blocks(4 * 5 * BLOCK) == 5


def test_by_default_no_more_than_rows_can_fill() -> None:
    assert blocks(PLENTY) == ROWS * 4


@pytest.mark.parametrize("size", [{"kv_cache_memory_bytes": 2**39}, {"kv_cache_memory_fraction": 0.5}])
def test_without_prefix_cache_no_more_than_rows_can_fill(size: dict[str, Any]) -> None:
    assert blocks(PLENTY, enable_prefix_caching=False, **size) == ROWS * 4


@pytest.mark.parametrize("size", [{}, {"kv_cache_memory_bytes": 1}, {"kv_cache_memory_fraction": 0.5}])
def test_a_number_of_blocks_overrides_everything(size: dict[str, Any]) -> None:
    assert blocks(0, num_blocks_override=1, **size) == 1


def test_two_sizes() -> None:
    wanted = r"^kv_cache_memory_bytes=65536 and kv_cache_memory_fraction=0.5 both size the KV cache: give one of them$"
    with pytest.raises(ValueError, match=wanted):
        blocks(PLENTY, kv_cache_memory_bytes=65536, kv_cache_memory_fraction=0.5)


@pytest.mark.parametrize(
    ("free", "size", "source", "instead"),
    [
        (PLENTY, {"kv_cache_memory_bytes": 3 * BLOCK + 1}, f"kv_cache_memory_bytes={3 * BLOCK + 1}", ""),
        (
            10 * BLOCK,
            {"kv_cache_memory_fraction": 0.3},
            "kv_cache_memory_fraction=0.3",
            " instead of kv_cache_memory_fraction",
        ),
        (15 * BLOCK, {}, QUARTER, ""),
    ],
)
def test_a_request_of_full_length_does_not_fit(free: int, size: dict[str, Any], source: str, instead: str) -> None:
    with pytest.raises(ValueError, match="max_model_len") as caught:
        blocks(free, length=51, **size)
    assert str(caught.value) == (
        f"max_model_len 51 needs 4 blocks of 16 tokens ({4 * BLOCK} bytes), but the KV cache holds 3 ({source}; {free} bytes "
        f"are free): lower max_model_len to at most 49, or raise kv_cache_memory_bytes to at least {4 * BLOCK}{instead}"
    )


def test_not_one_block_fits() -> None:
    wanted = (
        rf"holds 0 \(kv_cache_memory_bytes=100; {PLENTY} bytes are free\): raise kv_cache_memory_bytes to at least {BLOCK}$"
    )
    with pytest.raises(ValueError, match=wanted):
        blocks(PLENTY, length=17, kv_cache_memory_bytes=100)


@given(
    size=st.sampled_from((1, 3, 16)),
    held=st.integers(1, 20),
    length=st.integers(2, 400),
)
def test_what_the_message_advises_does_fit(size: int, held: int, length: int) -> None:
    """One token more than the cache has places for: the last one is never computed."""
    budget = held * BLOCK // 16 * size
    options = {"block_size": size, "enable_prefix_caching": False}
    if length <= held * size + 1:
        assert blocks(PLENTY, length=length, kv_cache_memory_bytes=budget, **options) == min(held, ROWS * -(-length // size))
        return
    with pytest.raises(
        ValueError, match=rf"at most {held * size + 1}, or raise kv_cache_memory_bytes to at least \d+$"
    ) as caught:
        blocks(PLENTY, length=length, kv_cache_memory_bytes=budget, **options)
    assert blocks(PLENTY, length=held * size + 1, kv_cache_memory_bytes=budget, **options) == held
    enough = int(str(caught.value).rpartition(" ")[2])
    assert blocks(PLENTY, length=length, kv_cache_memory_bytes=enough, **options) == -(-(length - 1) // size)


def test_more_is_asked_for_than_is_free() -> None:
    asked, free = 5 * BLOCK + 5, 5 * BLOCK - 1
    wanted = (
        rf"^the KV cache would take {5 * BLOCK} bytes \(kv_cache_memory_bytes={asked}\), but only {free} bytes .* are free$"
    )
    with pytest.raises(ValueError, match=wanted):
        blocks(free, kv_cache_memory_bytes=asked)
