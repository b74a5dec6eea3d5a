"""What the tests of the tree's structure look at: its files, its modules and their imports."""

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {".git", ".venv", "build", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """A module of the package. `name` leaves out the leading `ringpost.`; the root `__init__` is the empty name."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def relative(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.relative)


@dataclass(frozen=True)
class Import:
    """One name that an import statement brings in. `target` is absolute: `ringpost.ipc.ring`, `torch.nn`."""

    target: str
    line: int
    late: bool  # inside a function


@cache
def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tool_table(name: str) -> dict[str, object]:
    """What pyproject.toml says under `[tool.<name>]`."""
    tool = pyproject()["tool"]
    assert isinstance(tool, dict)
    table = tool[name]
    assert isinstance(table, dict)
    return table


@cache
def package_folders() -> tuple[Path, ...]:
    """Every folder under the root that holds an `__init__.py`, the root first."""
    found = [path.parent for path in ROOT.rglob("__init__.py") if not GENERATED & set(path.relative_to(ROOT).parts)]
    return tuple(sorted(found))


@cache
def modules() -> dict[str, Module]:
    """All modules of the package by name."""
    found = {}
    for folder in package_folders():
        for path in sorted(folder.glob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path)
    return found


def files_of_c() -> list[Path]:
    """C sources and headers of all rooms; their folders are no packages."""
    return sorted({path for folder in package_folders() if folder != ROOT for path in folder.rglob("*.[ch]")})


def files_of_tests() -> list[Path]:
    return sorted(path for path in (ROOT / "tests").rglob("*.py") if not GENERATED & set(path.parts))


@cache
def tracked_files() -> tuple[str, ...]:
    """Paths under version control; of an export or before the first commit, all files that no tool generated."""
    for options in (["--cached"], ["--others", "--exclude-standard"]):
        listing = _git_files(options)
        if listing:
            return listing
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    kept = (path for path in found if not GENERATED & set(path.parts) and ".egg-info" not in path.as_posix())
    return tuple(sorted(path.as_posix() for path in kept))


def _git_files(options: list[str]) -> tuple[str, ...]:
    """Existing files that git lists, or nothing where the tree is not a checkout of its own."""
    if not (ROOT / ".git").exists():
        return ()
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *options]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(name for name in output.split("\0") if name and (ROOT / name).is_file())


def imports(module: Module) -> Iterator[Import]:
    """All imports of a module, wherever they stand: in functions and under TYPE_CHECKING as well."""
    yield from _imports_under(module, module.tree, late=False)


def _imports_under(module: Module, node: ast.AST, *, late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, late)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute_base(module, child)
            for alias in child.names:
                name = base if alias.name == "*" else f"{base}.{alias.name}"
                yield Import(name, child.lineno, late)
        else:
            yield from _imports_under(module, child, late=late or isinstance(child, _FUNCTIONS))


def _absolute_base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("ringpost." + module.name).rstrip(".").split(".")
    up = node.level - 1 if module.is_package else node.level
    base = package[: len(package) - up]
    return ".".join([*base, *([node.module] if node.module else [])])


def module_of(target: str) -> Module | None:
    """The module of the package that an import's target lies in, or None for one from elsewhere."""
    if target != "ringpost" and not target.startswith("ringpost."):
        return None
    name = target.removeprefix("ringpost").removeprefix(".")
    while name not in modules():
        name = name.rpartition(".")[0]
    return modules()[name]
