"""Build the compiled library from csrc/ with setuptools: the kernels once for each instruction set, in one library.

It needs a C++ compiler and neither torch nor Python's headers. `setup.py` runs this file without importing the package.
"""

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SWITCH = 'SWIN_BACKBONE_NATIVE'
SOURCES = Path('csrc')  # from setup.py's folder, which is the current one
LIBRARY = ('library', 'threads', 'windows')  # compiled once, for every processor
KERNELS = ('gemm', 'block', 'backward', 'patches', 'patches_backward', 'kernels')
NAME = {'win32': 'swin.dll', 'darwin': 'libswin.dylib'}.get(sys.platform, 'libswin.so')
AVX2 = ['-mavx2', '-mfma', '-mf16c']
AVX512 = [*AVX2, '-mavx512f', '-mavx512bw', '-mavx512vl', '-mavx512dq']
BF16 = [*AVX512, '-mavx512bf16']
INSTRUCTION_SETS: dict[str, dict[str, list[str]]] = {
    'x86_64': {'avx2': AVX2, 'avx512': AVX512, 'avx512_bf16': BF16, 'amx': [*BF16, '-mamx-tile', '-mamx-bf16']},
    'aarch64': {'neon': []},
}
# The -Wno-*uninitialized flags: GCC warns about its own intrinsics header, where a value is undefined on purpose.
FLAGS = [
    *('-std=c++17', '-O3', '-g0', '-fPIC', '-fno-math-errno', '-fno-trapping-math', '-fvisibility=hidden'),
    *('-Wall', '-Wextra', '-Wno-maybe-uninitialized', '-Wno-uninitialized'),
]


def instruction_sets() -> dict[str, list[str]]:
    """The compiler's flags for each instruction set of this kind of processor."""
    machine = {'AMD64': 'x86_64', 'arm64': 'aarch64'}.get(platform.machine(), platform.machine())
    return INSTRUCTION_SETS.get(machine, {})


def extensions() -> list[Extension]:
    """The library. Where it cannot be built, the list is empty and one printed sentence says why."""
    if os.environ.get(SWITCH) == '0':
        return []
    if not instruction_sets():
        return _without(f'they are for x86-64 and ARM64, not {platform.machine()}')
    sources = [str(SOURCES / f'{name}.cpp') for name in (*LIBRARY, *KERNELS)]
    headers = [str(header) for header in sorted(SOURCES.glob('*.h'))]
    return [Extension('swin_backbone.backends.native.libswin', sources, depends=headers, optional=True)]


class BuildNative(build_ext):
    """Compile each source with its flags, several at a time, and say in one sentence if that failed."""

    def get_ext_filename(self, fullname: str) -> str:
        """A library that is no module of Python's has a name without Python's version."""
        return str(Path(*fullname.split('.')[:-1], NAME))

    def build_extension(self, ext: Extension) -> None:
        """Compile and link the library."""
        sets = instruction_sets()
        defines = ['-DSWIN_WITH_AMX'] if 'amx' in sets else []
        jobs = [(name, self.build_temp, defines) for name in LIBRARY] + [
            (name, str(Path(self.build_temp, isa)), [*flags, f'-DSWIN_ISA={isa}'])
            for isa, flags in sets.items()
            for name in KERNELS
        ]
        for folder in {folder for _, folder, _ in jobs}:
            Path(folder, SOURCES).mkdir(parents=True, exist_ok=True)

        def compile_one(job: tuple[str, str, list[str]]) -> list[str]:
            name, folder, flags = job
            source = str(SOURCES / f'{name}.cpp')
            return self.compiler.compile([source], output_dir=folder, extra_postargs=[*FLAGS, *flags])

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = [made for each in pool.map(compile_one, jobs) for made in each]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        on_linux = sys.platform == 'linux'
        self.compiler.link_shared_object(
            objects,
            str(target),
            libraries=['dl', 'pthread'] if on_linux else [],
            extra_postargs=[f'-Wl,--version-script={SOURCES}/swin.map'] if on_linux else [],
            target_lang='c++',
        )

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None: it is no module."""
        return []

    def run(self) -> None:
        """Build, where there is something to build."""
        super().run()
        if any(not Path(self.get_ext_fullpath(ext.name)).is_file() for ext in self.extensions):
            _without('the compiler did not make the library')


class BuildWheel(bdist_wheel):
    """A wheel for one platform and every Python 3: the library does not know Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Its tag."""
        tag = super().get_tag()
        return tag if self.root_is_pure else ('py3', 'none', tag[2])


def _without(reason: str) -> list[Extension]:
    print(f'swin_backbone: the compiled CPU operators are not built, and not needed: {reason}.', file=sys.stderr)
    return []
