"""What may lie at the top of the tree, and that the list of packages in pyproject.toml is complete."""

from fnmatch import fnmatch

from source_tree import GENERATED, ROOT, package_folders, tool_table, tracked_files

ALLOWED = {
    # the rooms
    "actors",
    "ipc",
    "kernels",
    "model_runner",
    "sched",
    "tests",
    # what goes with them
    "docs",
    "examples",
    # files
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "__init__.py",
    "__main__.py",
    "constraints.txt",
    "py.typed",
    "pyproject.toml",
}


def test_nothing_else_lies_at_the_top() -> None:
    top = {name.split("/")[0] for name in tracked_files()}
    assert len(top) > 10, f"the listing of the tree looks wrong: {sorted(top)}"
    strays = sorted(name for name in top - ALLOWED if not name.startswith("."))
    assert not strays, f"not allowed at the top of the tree: {strays}; put them into a room, docs/ or examples/"


def test_pyproject_lists_every_package() -> None:
    folders = {".".join(("ringpost", *folder.relative_to(ROOT).parts)) for folder in package_folders()}
    assert tool_table("setuptools")["packages"] == sorted(folders)


def test_every_folder_of_modules_is_a_package() -> None:
    packages = set(package_folders())
    outside = [
        name
        for name in tracked_files()
        if name.endswith(".py") and "/" in name and name.split("/")[0] not in {"tests", "examples", "docs"}
        if (ROOT / name).parent not in packages
    ]
    assert not outside, f"these modules lie in folders without __init__.py: {outside}"


def test_package_data_holds_every_other_file() -> None:
    data = tool_table("setuptools")["package-data"]
    assert isinstance(data, dict)
    missing = []
    for folder in package_folders():
        package = ".".join(("ringpost", *folder.relative_to(ROOT).parts))
        others = [path for path in folder.iterdir() if path.is_file() and path.suffix not in {".py", ".pyc"}]
        if folder == ROOT:
            others = [ROOT / "py.typed"]
        patterns = data.get(package, [])
        missing += [str(path) for path in others if not any(fnmatch(path.name, pattern) for pattern in patterns)]
    assert not missing, f"not in [tool.setuptools.package-data], so a wheel lacks them: {missing}"


def test_tools_do_not_generate_into_allowed_names() -> None:
    assert not GENERATED & ALLOWED
