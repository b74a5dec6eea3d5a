"""Chooses the kernel set of this process."""

from importlib import import_module
from typing import cast

from .interface import KernelSet

KERNEL_SETS = ("reference", "cpu", "triton")
DEFAULT_KERNEL_SET = "cpu"


def select_kernels(name: str = DEFAULT_KERNEL_SET) -> KernelSet:
    """The set of this name. Only that set is imported, because one of them needs Triton.

    Raises ValueError for an unknown name and ImportError where the set's compiler package is missing.
    """
    if name not in KERNEL_SETS:
        raise ValueError(f"kernel set must be one of {', '.join(KERNEL_SETS)}, got {name!r}")
    return cast("KernelSet", import_module(f"..{name}", __name__))
