"""The compiled kernels as a ctypes library, with the C structures that cross."""

import ctypes
import threading
from collections.abc import Callable
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from functools import cache
from types import SimpleNamespace

import torch

from ..build import BuildError, build

# How long a thread that waits for its share of work spins before it sleeps. A wake-up costs about as much.
SPIN_MICROSECONDS = 50

_LOCK = threading.Lock()

FORMAT_F32, FORMAT_BF16, FORMAT_Q8, FORMAT_Q4 = range(4)


class Weight(ctypes.Structure):
    """`struct weight` of gemm.h."""

    _fields_ = (
        ("format", c_int64),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("panels", c_void_p),
        ("bias", c_void_p),
    )


class Heads(ctypes.Structure):
    """`struct heads` of attention.h."""

    _fields_ = (
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("block_size", c_int64),
        ("is_bf16", c_int64),
    )


class Batch(ctypes.Structure):
    """`struct batch` of attention.h."""

    _fields_ = (
        ("num_requests", c_int64),
        ("starts", c_void_p),
        ("counts", c_void_p),
        ("block_table", c_void_p),
        ("table_width", c_int64),
    )


class Layer(ctypes.Structure):
    """`struct layer` of decoder.h."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv", Weight),
        ("out", Weight),
        ("gate_up", Weight),
        ("down", Weight),
    )


class Decoder(ctypes.Structure):
    """`struct decoder` of decoder.h."""

    _fields_ = (
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("vocab_size", c_int64),
        ("embedding", c_void_p),
        ("heads", Heads),
        ("eps", c_float),
        ("scale", c_float),
        ("norm", c_void_p),
        ("cos_sin", c_void_p),
        ("layers", POINTER(Layer)),
    )


class Step(ctypes.Structure):
    """`struct step` of decoder.h."""

    _fields_ = (
        ("count", c_int64),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("batch", Batch),
        ("wanted", c_void_p),
        ("num_wanted", c_int64),
        ("key_caches", POINTER(c_void_p)),
        ("value_caches", POINTER(c_void_p)),
        ("hidden", c_void_p),
    )


@cache
def library() -> SimpleNamespace:
    """The library's functions, compiled if need be, with as many threads as torch has now.

    Only one call runs at a time, whatever threads they come from: all share the same workers. Raises BuildError where there
    can be no library.
    """
    loaded = _load()
    pointers = {
        "ringpost_linear": [POINTER(Weight), c_void_p, c_int64, c_int64, c_int, c_void_p],
        "ringpost_pack": [c_void_p, c_int64, c_int64, c_int64, c_void_p],
        "ringpost_pack_quantised": [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p],
        "ringpost_write_kv": [POINTER(Heads), c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p],
        "ringpost_attend": [POINTER(Heads), POINTER(Batch), c_void_p, c_void_p, c_void_p, c_float, c_void_p],
        "ringpost_decode": [POINTER(Decoder), POINTER(Step)],
        "ringpost_choose": [c_void_p, c_int64, c_int64, *[c_void_p] * 5],
        "ringpost_choose_product": [POINTER(Weight), c_void_p, c_int64, c_int64, c_int, *[c_void_p] * 5],
        "ringpost_start_threads": [c_int, c_int],
    }
    functions = {}
    for name, arguments in pointers.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, c_int
        functions[name] = _one_at_a_time(function)
    loaded.ringpost_quantised_bytes.argtypes, loaded.ringpost_quantised_bytes.restype = [c_int64, c_int64, c_int64], c_int64
    functions["ringpost_quantised_bytes"] = loaded.ringpost_quantised_bytes
    functions["ringpost_start_threads"](torch.get_num_threads(), SPIN_MICROSECONDS)
    return SimpleNamespace(**functions)


def _load() -> ctypes.CDLL:
    path = build()
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # a file that was cut short, maybe
        path.unlink(missing_ok=True)
    try:
        return ctypes.CDLL(str(build()))
    except OSError as error:
        raise BuildError(f"the kernels cannot be loaded: {error}") from error


def _one_at_a_time(function: Callable[..., int]) -> Callable[..., int]:
    def call(*arguments: object) -> int:
        with _LOCK:
            return function(*arguments)

    return call
