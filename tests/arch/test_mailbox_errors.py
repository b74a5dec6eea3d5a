"""Whoever uses a mailbox reads in its contract what can go wrong."""

import ast
from collections.abc import Iterator

from source_tree import modules

CONTRACTS = "ipc.mailbox"
NEVER_RAISE = {"name", "largest_nowait", "close"}


def error_classes() -> set[str]:
    return {node.name for node in modules()["ipc.errors"].tree.body if isinstance(node, ast.ClassDef)}


def public_methods() -> Iterator[tuple[str, str, str]]:
    """Class, name and docstring of every public method of the contracts."""
    for node in modules()[CONTRACTS].tree.body:
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
                    yield node.name, method.name, ast.get_docstring(method) or ""


def test_every_method_of_a_mailbox_names_its_errors() -> None:
    errors = error_classes()
    silent = [
        f"{kind}.{name}"
        for kind, name, text in public_methods()
        if name not in NEVER_RAISE and not any(error in text for error in errors)
    ]
    assert not silent, f"their docstrings name none of {sorted(errors)}: {silent}"


def test_both_ends_are_looked_at() -> None:
    found = {(kind, name) for kind, name, _ in public_methods()}
    assert {("Sender", "send"), ("Sender", "send_nowait"), ("Receiver", "receive"), ("Receiver", "receive_nowait")} <= found
    unknown = NEVER_RAISE - {name for _, name in found}
    assert not unknown, f"no method of a mailbox: {unknown}"
