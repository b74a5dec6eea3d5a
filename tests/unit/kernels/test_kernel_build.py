"""The compiled kernels: built once, replaced by torch's operators where they cannot be."""

import ctypes
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringpost.kernels import select
from ringpost.kernels.build import BuildError, build
from ringpost.kernels.select import select_kernels


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A compiler that writes down each call, and makes a file of its name."""
    script = tmp_path / "fake-cc"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n')
    script.chmod(0o755)
    return script


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_compiled_once(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(compiler))
    cache = tmp_path / "cache"
    first = build(cache)
    assert build(cache) == first
    assert first.read_text() == "made\n"
    assert len(calls(tmp_path)) == 1
    assert "-march=native" in calls(tmp_path)[0]
    monkeypatch.setenv("RINGPOST_KERNELS_MARCH", "x86-64-v3")
    assert build(cache) != first
    assert "-march=x86-64-v3" in calls(tmp_path)[1]
    assert sorted(path.name for path in cache.iterdir()) == sorted({first.name, build(cache).name}), "nothing else is left"


def test_compiled_by_several_at_once(tmp_path: Path, compiler: Path) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(4) as threads:
        made = set(threads.map(lambda _: build(cache, str(compiler)), range(8)))
    assert len(made) == 1
    assert [path.read_text() for path in cache.iterdir()] == ["made\n"]


def test_the_cache_is_where_caches_are(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build(compiler=str(compiler)).parent == tmp_path / "xdg/ringpost/kernels"


def test_the_real_compiler(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(build(tmp_path / "cache")))
    assert library.ringpost_decode


def test_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="C compiler 'no-such-cc' is not installed"):
        build(tmp_path / "cache", "no-such-cc")


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    script = tmp_path / "bad-cc"
    script.write_text("#!/bin/sh\necho 'out of vectors' >&2\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(BuildError, match="bad-cc failed: out of vectors"):
        build(tmp_path / "cache", str(script))
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_compiler_may_have_options(tmp_path: Path, compiler: Path) -> None:
    build(tmp_path / "cache", f"{compiler} -pipe")
    assert calls(tmp_path)[0].startswith("-pipe ")


def test_a_cache_that_others_write_to(tmp_path: Path, compiler: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(BuildError, match="others may write to it"):
        build(tmp_path / "cache", str(compiler))


def test_a_library_that_was_cut_short_is_built_again(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    code = "from ringpost.kernels.cpu.library import build, library; library(); print(build())"
    command = [sys.executable, "-P", "-c", code]
    path = Path(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip())
    path.write_bytes(path.read_bytes()[:100])
    assert Path(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()) == path
    assert path.stat().st_size > 10_000


def test_a_cache_that_is_a_file(tmp_path: Path, compiler: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(BuildError, match="the kernels cannot be compiled"):
        build(tmp_path / "cache", str(compiler))


def test_torch_takes_over(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def no_compiler(name: str) -> object:
        if name == "cpu":
            raise BuildError("the C compiler 'cc' is not installed")
        return real(name)

    real = select._import
    select._cpu_or_torch.cache_clear()
    monkeypatch.setattr(select, "_import", no_compiler)
    try:
        with caplog.at_level(logging.WARNING):
            chosen = select_kernels()
            assert select_kernels() is chosen
    finally:
        select._cpu_or_torch.cache_clear()
    assert chosen is select_kernels("torch_ops")
    assert [record.message for record in caplog.records] == [
        "C kernels are not used, and steps take several times as long: the C compiler 'cc' is not installed"
    ]
