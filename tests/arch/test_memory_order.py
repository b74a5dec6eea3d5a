"""Memory that processes share: its words have names, its ordered accesses have marks, and only `ipc/` touches it."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from textwrap import dedent

import pytest
from source_tree import Module, imports, modules

MARK = re.compile(r"order: ([\w ]+), side ([AB])\b")
ACCESS = re.compile(r"\b(?:load|publish|publish_fenced|fence)\(|_?words\[")
WORDS = {"words", "_words"}
ACCESSORS = {"load", "publish", "publish_fenced"}
RAW = {
    "ipc.atomics.load",
    "ipc.atomics.publish",
    "ipc.atomics.publish_fenced",
    "ipc.atomics.words_of",
    "ipc.layout",
    "ipc.ring_reader",
    "ipc.ring_writer",
}


def shared_modules() -> list[Module]:
    return [module for name, module in modules().items() if name.startswith("ipc.") and name.count(".") == 1]


def marks(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and side of every mark in a comment; the name is empty where one is malformed."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and "order:" in token.string and "`order:" not in token.string:
            found = MARK.search(token.string)
            yield token.start[0], found[1] if found else "", found[2] if found else ""


def unmarked(text: str, line: int) -> bool:
    """Whether neither the line of a mark nor the two behind it make an ordered access."""
    return not any(ACCESS.search(code.partition("#")[0]) for code in text.splitlines()[line - 1 : line + 2])


def numbers_as_indices(tree: ast.AST) -> Iterator[int]:
    """Lines that name a shared word by a number."""
    for node in ast.walk(tree):
        index: ast.expr | None = None
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] in WORDS:
            index = node.slice
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ACCESSORS:
            index = node.args[1]
        parts = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
        if any(isinstance(part, ast.Constant) for part in parts):
            assert isinstance(node, ast.expr)
            yield node.lineno


def test_each_mark_has_its_other_side() -> None:
    sides: dict[str, set[str]] = defaultdict(set)
    places: dict[str, list[str]] = defaultdict(list)
    for module in shared_modules():
        for line, name, side in marks(module.text):
            assert name, f"{module.relative}:{line}: a mark reads `order: NAME, side A` or `side B`"
            sides[name].add(side)
            places[name].append(f"{module.relative}:{line}")
    assert {"HEAD", "TAIL", "wake"} <= set(sides)
    alone = {name: places[name] for name, found in sides.items() if found != {"A", "B"}}
    assert not alone, f"without their other side: {alone}"


def test_each_mark_stands_at_an_access() -> None:
    astray = [
        f"{module.relative}:{line}: order: {name}, side {side}"
        for module in shared_modules()
        for line, name, side in marks(module.text)
        if unmarked(module.text, line)
    ]
    assert not astray, "\n".join(["marks at which no ordered access stands:", *astray])


def test_shared_words_are_named() -> None:
    numbered = [
        f"{module.relative}:{line}"
        for module in shared_modules()
        if module.name != "ipc.layout"
        for line in numbers_as_indices(module.tree)
    ]
    assert not numbered, f"words of shared memory given by number; their names stand in ipc/layout.py: {numbered}"


@pytest.mark.parametrize("name", sorted(name for name in modules() if not f"{name}.".startswith("ipc.")))
def test_only_ipc_reads_and_writes_shared_words(name: str) -> None:
    module = modules()[name]
    targets = {entry.target.removeprefix("ringpost.") for entry in imports(module)}
    raw = {target for target in targets if any(f"{target}.".startswith(f"{forbidden}.") for forbidden in RAW)}
    assert not raw, f"{module.relative} reaches around the mailboxes: {sorted(raw)}"


def test_malformed_and_stray_marks_are_found() -> None:
    text = dedent(
        """
        publish(words, W_HEAD, head)  # order: HEAD, side A: complete
        # order: TAIL, side C
        '''order: NAME, side A'''
        # order: TAIL, side B


        idle()
        load(words, W_TAIL)
        """
    )
    assert list(marks(text)) == [(2, "HEAD", "A"), (3, "", ""), (5, "TAIL", "B")]
    assert [unmarked(text, line) for line in (2, 5)] == [False, True]


@pytest.mark.parametrize(
    "text", ["words[8]", "self._words[3] = 1", "load(words, 8)", "publish(self._words, 0, 1)", "words[2:n]"]
)
def test_numbers_in_place_of_names_are_found(text: str) -> None:
    assert list(numbers_as_indices(ast.parse(text))) == [1]


@pytest.mark.parametrize("text", ["words[W_HEAD]", "load(words, w_tail(0))", "parts[0]", "publish(words, W_MAGIC, 1)"])
def test_names_and_other_indices_are_let_pass(text: str) -> None:
    assert list(numbers_as_indices(ast.parse(text))) == []
