"""The programs in examples/ and the one in README.md run as they are."""

import re

import pytest
from programs import run_program
from source_tree import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(no_leaks: None, smollm2: str, path: object) -> None:
    done = run_program("-P", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_program_in_the_readme_runs(no_leaks: None, smollm2: str) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = run_program("-P", "-c", source)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readmes_commands_exist() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\S+)", text, re.MULTILINE)
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    flags = {
        flag for line in re.findall(r"^ringpost complete .*", text, re.MULTILINE) for flag in re.findall(r"--[\w-]+", line)
    }
    known = run_program("-P", "-m", "ringpost", "complete", "--help").stdout
    assert flags
    assert all(flag in known for flag in flags)
