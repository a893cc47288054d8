"""Build the compiled library from csrc/ with setuptools. A library holds the kernels for all instruction sets.

The build needs a C++ compiler, without torch and without Python's headers. `setup.py` runs the file without importing
the package. `SWIN_BACKBONE_PLATFORM` names a wheel's platform: zig compiles for the platform.
"""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Optional

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError
from setuptools.modified import newer_group

SWITCH = 'SWIN_BACKBONE_NATIVE'
PLATFORM = 'SWIN_BACKBONE_PLATFORM'
SOURCES = Path('csrc')  # from setup.py's folder, the current folder
# Compiled once, for every processor
LIBRARY = (
    *('library/arguments', 'library/instruction_sets', 'library/swin_layers', 'library/detectors'),
    'machine/memory',
    'machine/profile',
    'machine/threads',
    'block/windows',
    'detection/roi_axes',
    'runtimes/operators',
    'runtimes/onnxruntime',
)
KERNELS = (  # once for each instruction set
    *('products/gemm', 'block/block', 'block/backward', 'patches/patches', 'patches/patches_backward'),
    *('norm/output_norm', 'detection/convolution', 'detection/roi_align', 'detection/suppression'),
    *('detection/deformable', 'library/isa_functions'),
)
NAMES = {'linux': 'libswin.so', 'macos': 'libswin.dylib', 'windows': 'swin.dll'}
AVX2 = ['-mavx2', '-mfma', '-mf16c']
AVX512 = [*AVX2, '-mavx512f', '-mavx512bw', '-mavx512vl', '-mavx512dq']
AVX512_VNNI = [*AVX512, '-mavx512vnni']
BF16 = [*AVX512_VNNI, '-mavx512bf16']
AMX = [*BF16, '-mamx-tile', '-mamx-bf16', '-mamx-int8']
DOT = '+bf16+dotprod'
INSTRUCTION_SETS: dict[str, dict[str, list[str]]] = {  # with the compiler's flags, the best set first
    'x86_64': {
        **{'amx': AMX, 'avx512_bf16': BF16, 'avx512_vnni': AVX512_VNNI, 'avx512': AVX512},
        **{'avx2_vnni': [*AVX2, '-mavxvnni'], 'avx2': AVX2},
    },
    'aarch64': {'neon_bf16': [f'-march=armv8.2-a{DOT}'], 'neon': []},
}
# The -Wno-*uninitialized flags: a header of GCC has undefined values on purpose, and GCC warns. Clang lacks some of the
# flags.
FLAGS = [
    *('-std=c++17', '-O3', '-g0', '-fno-math-errno', '-fno-trapping-math', '-fvisibility=hidden'),
    *('-Wall', '-Wextra', '-Wno-unknown-warning-option', '-Wno-maybe-uninitialized', '-Wno-uninitialized'),
]
ZIG_TARGETS = {  # by the platform of a wheel; manylinux2014 is glibc 2.17
    'manylinux2014_x86_64': 'x86_64-linux-gnu.2.17',
    'manylinux2014_aarch64': 'aarch64-linux-gnu.2.17',
    'macosx_11_0_arm64': 'aarch64-macos.11.0',
    'win_amd64': 'x86_64-windows-gnu',
}
ZIG_FLAGS = {f'-march=armv8.2-a{DOT}': f'-mcpu=generic{DOT}'}  # zig's replacements of flags


class Target(NamedTuple):
    """A machine and a system, and the command of a compiler for the two."""

    machine: str
    system: str
    compiler: list[str]


def target() -> Target:
    """Return the target of the environment: a wheel's platform, or the running machine."""
    wheel = os.environ.get(PLATFORM)
    if wheel:
        machine, system = ZIG_TARGETS[wheel].split('-')[:2]
        zig = [sys.executable, '-m', 'ziglang', 'c++', '-target', ZIG_TARGETS[wheel], '-s']
        return Target(machine, system.partition('.')[0], zig)
    machine = {'AMD64': 'x86_64', 'arm64': 'aarch64'}.get(platform.machine(), platform.machine())
    system = {'darwin': 'macos', 'win32': 'windows'}.get(sys.platform, sys.platform)
    return Target(machine, system, shlex.split(os.environ.get('CXX', 'c++')))


def extensions() -> list[Extension]:
    """Return the library; an empty list if it is switched off, or for another machine."""
    if os.environ.get(SWITCH) == '0':
        return []
    machine = target().machine
    if machine not in INSTRUCTION_SETS:
        print(f'swin_backbone: the compiled operators are for x86-64 and ARM64, not {machine}.', file=sys.stderr)
        return []
    sources = [str(SOURCES / f'{name}.cpp') for name in (*LIBRARY, *KERNELS)]
    headers = [str(header) for header in sorted(SOURCES.rglob('*.h'))]
    optional = PLATFORM not in os.environ  # a wheel for a platform must hold the library
    return [Extension('swin_backbone.kernels.native.libswin', sources, depends=headers, optional=optional)]


def compile_sources(objects: Path, of: Target, flags: list[str], isas: Optional[Container[str]] = None) -> list[str]:
    """Compile the library's sources, several at a time.

    Args:
        objects: the folder of object files.
        flags: for the compiler, after `FLAGS`.
        isas: names of instruction sets. Default: all that the compiler supports.

    Returns:
        The files to link.

    Raises:
        CompileError: the compiler failed. The compiler's messages are on stderr.
    """
    pic = [] if of.system == 'windows' else ['-fPIC']
    command = [*of.compiler, *FLAGS, *pic, f'-I{SOURCES}', *flags]
    objects.mkdir(parents=True, exist_ok=True)
    sets = {isa: own for isa, own in supported_sets(of, objects).items() if isas is None or isa in isas}
    if not sets:
        raise CompileError('the compiler knows none of the instruction sets')
    with_sets = [f'-DSWIN_WITH_{isa.upper()}' for isa in sets]
    jobs = [(name, '', with_sets) for name in LIBRARY] + [
        (name, f'.{isa}', [*isa_flags, f'-DSWIN_ISA={isa}']) for isa, isa_flags in sets.items() for name in KERNELS
    ]

    def compile_one(job: tuple[str, str, list[str]]) -> str:
        name, suffix, own_flags = job
        made = objects / f'{name.replace("/", "_")}{suffix}.o'
        _run([*command, *own_flags, '-c', str(SOURCES / f'{name}.cpp'), '-o', str(made)])
        return str(made)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(compile_one, jobs))


def link_library(to: Path, objects: list[str], of: Target, flags: list[str]) -> None:
    """Link the object files of `compile_sources`."""
    exports = SOURCES / 'library' / 'swin.map'
    on_linux = ['-ldl', '-lpthread', f'-Wl,--version-script={exports}'] if of.system == 'linux' else []
    _run([*of.compiler, '-shared', *objects, '-o', str(to), *on_linux, *flags])


def supported_sets(of: Target, folder: Path) -> dict[str, list[str]]:
    """Return the instruction sets with flags of the compiler: GCC before 11 has no flags for AMX."""
    empty = folder / 'empty.cpp'
    empty.write_text('')

    def compiles(flags: list[str]) -> bool:
        command = [*of.compiler, *flags, '-c', str(empty), '-o', str(folder / 'empty.o')]
        return subprocess.run(command, capture_output=True).returncode == 0

    sets = INSTRUCTION_SETS[of.machine]
    if 'ziglang' in of.compiler:
        sets = {isa: [ZIG_FLAGS.get(flag, flag) for flag in flags] for isa, flags in sets.items()}
    try:
        return {isa: flags for isa, flags in sets.items() if compiles(flags)}
    except OSError as error:
        raise CompileError(str(error)) from error


def _run(command: list[str]) -> None:
    if subprocess.run(command).returncode:
        raise CompileError(f'command failed: {" ".join(command)}')


class BuildNative(build_ext):
    """Build the library. The library is optional: setuptools prints a warning after a failure."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the library's name, without Python's version: the library is no Python module."""
        return str(Path(*fullname.split('.')[:-1], NAMES.get(target().system, NAMES['linux'])))

    def build_extension(self, ext: Extension) -> None:
        """Build in the temporary folder, and move the file: a process may use the old library.

        A library newer than its sources stays, if the same compiler and flags built it. `--force` builds in any case.
        """
        flags, link_flags = (shlex.split(os.environ.get(name, '')) for name in ('CFLAGS', 'LDFLAGS'))
        to = Path(self.get_ext_fullpath(ext.name))
        recipe, recorded = repr((to, target(), flags, link_flags)), Path(self.build_temp, 'recipe')
        sources = [*ext.sources, *ext.depends, str(SOURCES / 'build.py')]
        if not (self.force or newer_group(sources, str(to))) and recorded.is_file() and recorded.read_text() == recipe:
            return
        recorded.unlink(missing_ok=True)
        to.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(self.build_temp, to.name)
        link_library(beside, compile_sources(Path(self.build_temp), target(), flags), target(), link_flags)
        self.move_file(str(beside), str(to.with_suffix('.new')))
        to.with_suffix('.new').replace(to)
        recorded.write_text(recipe)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return no symbols: the library is no Python module."""
        return []


class BuildWheel(bdist_wheel):
    """A wheel for a platform and every Python 3: the library does not use Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag."""
        tag = super().get_tag()
        return tag if self.root_is_pure else ('py3', 'none', os.environ.get(PLATFORM) or tag[2])
