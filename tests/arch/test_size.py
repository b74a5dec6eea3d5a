"""Files, lines and functions stay small, say what they are for, and tests can fail."""

import ast
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from source_tree import ROOT, files_of_c, files_of_tests, modules, tool_table

MAX_FILE = 350
MAX_MEDIAN = 120
MAX_FUNCTION = 80
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
CHECKS = {"raises", "warns", "fail", "deprecated_call", "fullmatch_lines"}


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_files_are_small() -> None:
    sources = [*(module.path for module in modules().values()), *files_of_c()]
    large = {relative(path): line_count(path) for path in sources if line_count(path) > MAX_FILE}
    assert not large, f"more than {MAX_FILE} lines: {large}"


def test_lines_of_c_are_as_short_as_those_of_python() -> None:
    limit = tool_table("ruff")["line-length"]
    assert isinstance(limit, int)
    assert files_of_c(), "found no C sources to look at"
    long = [
        f"{relative(path)}:{number}: {len(line)} characters"
        for path in files_of_c()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > limit
    ]
    assert not long, "\n".join([f"more than {limit} characters:", *long])


def test_half_the_files_of_a_folder_are_smaller_still() -> None:
    lines = defaultdict(list)
    for module in modules().values():
        if not module.is_package:
            lines[relative(module.path.parent)].append(line_count(module.path))
    large = {folder: median(counts) for folder, counts in lines.items() if median(counts) > MAX_MEDIAN}
    assert not large, f"a median of more than {MAX_MEDIAN} lines: {large}"


@pytest.mark.parametrize("name", sorted(modules()))
def test_functions_are_small(name: str) -> None:
    module = modules()[name]
    large = [
        f"{module.relative}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines of {MAX_FUNCTION}"
        for node in ast.walk(module.tree)
        if isinstance(node, FUNCTIONS) and node.end_lineno and node.end_lineno - node.lineno >= MAX_FUNCTION
    ]
    assert not large, "\n".join(["", *large])


def test_every_module_says_what_it_is_for() -> None:
    silent = [module.relative for name, module in modules().items() if name != "kernels" and not ast.get_docstring(module.tree)]
    assert not silent, f"without a docstring: {silent}"


def called_names(function: ast.AST) -> set[str]:
    """Last names of everything a function calls or passes on."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in calls
        if isinstance(node, ast.Attribute | ast.Name)
    }


def can_fail(function: ast.AST) -> bool:
    return any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function)) or bool(called_names(function) & CHECKS)


def checking_names(trees: list[ast.Module]) -> set[str]:
    """Names of the test tree's functions and classes that assert something, themselves or through one another."""
    kinds = (*FUNCTIONS, ast.ClassDef)
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]
    known = {node.name for node in nodes if can_fail(node)}
    while more := {node.name for node in nodes if called_names(node) & known} - known:
        known |= more
    return known


def is_test(name: str) -> bool:
    return name.startswith("test")


def test_every_test_can_fail() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files_of_tests()}
    helpers = {name for name in checking_names(list(trees.values())) if not is_test(name)}
    toothless = [
        f"{relative(path)}:{node.lineno}: {node.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and is_test(node.name) and path.name.startswith("test_")
        if not can_fail(node) and not called_names(node) & helpers
    ]
    assert not toothless, "\n".join(["these tests assert nothing:", *toothless])


def test_every_test_file_holds_a_test() -> None:
    empty = []
    for path in files_of_tests():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
        names |= {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if path.name.startswith("test_") and not any(is_test(name.lower()) for name in names):
            empty.append(relative(path))
    assert not empty, f"without a test: {empty}"


def test_names_of_test_files_are_unique() -> None:
    places = defaultdict(list)
    for path in files_of_tests():
        places[path.name].append(relative(path))
    twice = [paths for paths in places.values() if len(paths) > 1]
    assert not twice, f"test files need names of their own: {twice}"
    assert "__init__.py" not in places, "test folders are no packages"
