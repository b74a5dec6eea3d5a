"""Chooses the kernel set of this process."""

import logging
from functools import cache
from importlib import import_module
from typing import cast

from .build import BuildError
from .interface import KernelSet

KERNEL_SETS = ("reference", "torch_ops", "cpu", "triton")
DEFAULT_KERNEL_SET = "cpu"

_logger = logging.getLogger("ringpost")


def select_kernels(name: str = DEFAULT_KERNEL_SET) -> KernelSet:
    """The set of this name. Only that set is imported, because one of them needs Triton and one a C compiler.

    Where the default one cannot be built this is `torch_ops`, and one line in the log says why. Raises ValueError for an
    unknown name and ImportError where the set's compiler package is missing.
    """
    if name not in KERNEL_SETS:
        raise ValueError(f"kernel set must be one of {', '.join(KERNEL_SETS)}, got {name!r}")
    return _cpu_or_torch() if name == DEFAULT_KERNEL_SET else _import(name)


@cache
def _cpu_or_torch() -> KernelSet:
    try:
        return _import("cpu")
    except BuildError as error:
        _logger.warning("C kernels are not used, and steps take several times as long: %s", error)
        return _import("torch_ops")


def _import(name: str) -> KernelSet:
    return cast("KernelSet", import_module(f"..{name}", __name__))
