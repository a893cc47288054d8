"""The library's C++ test program (csrc/tests/unit.cpp): functions of the interface against plain loops."""

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import ROOT

import swin_backbone.kernels.native
from csrc.build import NAMES, Target, compile_sources, link_library
from swin_backbone.kernels.native.library import FILE_NAME, load_library

UNIT = ROOT / 'csrc' / 'tests' / 'unit.cpp'
WINE = shutil.which('wine64') or shutil.which('wine') or shutil.which('/usr/lib/wine/wine64')  # the place in Debian
needs_compiler = pytest.mark.skipif(shutil.which('c++') is None, reason='there is no C++ compiler')
needs_zig = pytest.mark.skipif(find_spec('ziglang') is None, reason='zig, which compiles for it, is not installed')


def compile_unit(compiler: list[str], parts: list[str], folder: Path) -> Path:
    """Compile the test program with the given objects or library."""
    command = [*compiler, '-std=c++17', '-O1', '-Wall', '-Wextra', '-Werror', UNIT, *parts, '-o', folder / 'unit.exe']
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)  # zig first compiles zig's libraries
    assert result.returncode == 0, result.stderr
    return folder / 'unit.exe'  # Windows needs the suffix


def check(command: list, **environment: str) -> list[str]:
    """Run the program, and return the tested instruction sets."""
    env = {**os.environ, **environment}
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    tested = re.findall(r'^(\w+), (\w+): (\d+) checks', result.stdout, re.MULTILINE)
    assert all(int(count) > (200 if dtype == 'int8' else 500) for _, dtype, count in tested)
    return [isa for isa, dtype, _ in tested if dtype == 'float32']


@pytest.mark.slow  # `make test TESTS=native` runs it
@needs_compiler
def test_each_function_computes_what_plain_loops_compute(tmp_path):
    library, _ = load_library()
    folder = Path(swin_backbone.kernels.native.__file__).parent
    unit = compile_unit(['c++'], [str(folder / FILE_NAME), f'-Wl,-rpath,{folder}'], tmp_path)
    tested = check([unit])
    sets = library.isas[library.isas.index(tested[0]) :]  # AVX-512 does not bring AVX-VNNI
    assert tested in (sets, [isa for isa in sets if isa != 'avx2_vnni'])
    assert library.isa in tested


@pytest.mark.slow
@needs_zig
@pytest.mark.skipif(shutil.which('qemu-aarch64-static') is None, reason='qemu-aarch64-static is not installed')
def test_neon_under_an_emulator(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    zig = [sys.executable, '-m', 'ziglang', 'c++', '-target', 'aarch64-linux-musl', '-static']
    objects = compile_sources(tmp_path, Target('aarch64', 'linux', zig), [])
    command = ['qemu-aarch64-static', '-cpu', 'max', compile_unit(zig, objects, tmp_path)]
    assert check(command) == ['neon_bf16', 'neon']


@pytest.mark.slow
@needs_zig
@pytest.mark.skipif(WINE is None, reason='Wine, which runs programs for Windows, is not installed')
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='Wine runs programs for its own kind of processor')
def test_the_library_for_windows_under_wine(tmp_path, monkeypatch):
    """Test the DLL of a wheel: the exports, and the DLL's threads."""
    monkeypatch.chdir(ROOT)
    zig = [sys.executable, '-m', 'ziglang', 'c++', '-target', 'x86_64-windows-gnu']
    target = Target('x86_64', 'windows', zig)
    link_library(tmp_path / NAMES['windows'], compile_sources(tmp_path / 'objects', target, []), target, ['-s'])
    (imported,) = tmp_path.glob('*.lib')
    unit = compile_unit(zig, [imported], tmp_path)
    tested = check([WINE, unit], WINEPREFIX=str(tmp_path / 'prefix'), WINEDEBUG='-all')
    here = [isa for isa in load_library()[0].isas if isa != 'amx']  # the library uses AMX on Linux alone
    assert tested == here


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='AMX is of x86-64')
def test_emulated_sets(tmp_path, monkeypatch):
    """AMX with loops in its place, and AVX-VNNI by the same instruction of AVX-512."""
    library, _ = load_library()
    if library.isa not in ('amx', 'avx512_bf16'):
        pytest.skip('this processor has no AVX-512 with bf16, with which the emulations run')
    monkeypatch.chdir(ROOT)
    emulated = ['-O1', '-DSWIN_EMULATE_AMX', '-DSWIN_EMULATE_AVX_VNNI']
    objects = compile_sources(tmp_path, Target('x86_64', 'linux', ['c++']), emulated)
    assert check([compile_unit(['c++'], [*objects, '-ldl', '-lpthread'], tmp_path)]) == library.isas
