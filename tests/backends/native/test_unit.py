"""The library's own test, a C++ program (csrc/tests/unit.cpp): each function of its interface against plain loops."""

import platform
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import ROOT

import swin_backbone.backends.native
from swin_backbone.backends.native.build import Target, compile_sources
from swin_backbone.backends.native.library import NAME, load

UNIT = ROOT / 'csrc' / 'tests' / 'unit.cpp'
needs_compiler = pytest.mark.skipif(shutil.which('c++') is None, reason='there is no C++ compiler')


def compile_unit(compiler: list[str], parts: list[str], folder: Path) -> Path:
    """The program, made of its source and the objects, or the library, that it tests."""
    command = [*compiler, '-std=c++17', '-O1', '-Wall', '-Wextra', '-Werror', UNIT, *parts, '-o', folder / 'unit']
    made = subprocess.run(command, capture_output=True, text=True, timeout=900)  # zig first compiles its libraries
    assert made.returncode == 0, made.stderr
    return folder / 'unit'


def check(command: list) -> list[str]:
    """Run the program, and return the instruction sets that it has tested."""
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    tested = re.findall(r'^(\w+), (\w+): (\d+) checks', found.stdout, re.MULTILINE)
    assert all(int(count) > 500 for _, _, count in tested)
    return [isa for isa, dtype, _ in tested if dtype == 'float32']


@needs_compiler
def test_each_function_computes_what_plain_loops_compute(tmp_path):
    library, _ = load()
    folder = Path(swin_backbone.backends.native.__file__).parent
    unit = compile_unit(['c++'], [str(folder / NAME), f'-Wl,-rpath,{folder}'], tmp_path)
    tested = check([unit])
    assert tested == library.isas[-len(tested) :]  # all from the best that this processor has
    assert library.isa in tested


@pytest.mark.slow
@pytest.mark.skipif(find_spec('ziglang') is None, reason='zig, which compiles for ARM64, is not installed')
@pytest.mark.skipif(shutil.which('qemu-aarch64-static') is None, reason='qemu-aarch64-static is not installed')
def test_neon_under_an_emulator(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    zig = [sys.executable, '-m', 'ziglang', 'c++', '-target', 'aarch64-linux-musl', '-static']
    objects = compile_sources(tmp_path, Target('aarch64', 'linux', zig), [])
    assert check(['qemu-aarch64-static', compile_unit(zig, objects, tmp_path)]) == ['neon']


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='AMX is of x86-64')
def test_what_is_written_for_amx_with_loops_in_its_place(tmp_path, monkeypatch):
    library, _ = load()
    if library.isa not in ('amx', 'avx512_bf16'):
        pytest.skip('this processor has no AVX-512 with bf16, with which the loops run')
    monkeypatch.chdir(ROOT)
    objects = compile_sources(tmp_path, Target('x86_64', 'linux', ['c++']), ['-O1', '-DSWIN_EMULATE_AMX'])
    assert check([compile_unit(['c++'], [*objects, '-ldl', '-lpthread'], tmp_path)])[0] == 'amx'
