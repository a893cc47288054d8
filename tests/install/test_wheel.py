"""An installed wheel has configs and tools, and mim finds them."""

import os
import platform
import re
import shutil
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import ROOT, run_python
from mmengine.fileio import load

from csrc import build as build_native

X86_64 = ['amx', 'avx512_bf16', 'avx512', 'avx2']
ARM64 = ['neon_bf16', 'neon']
CONFIG = 'mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'

LOOK_UP = f"""
import runpy, sys
import swin_backbone
from pathlib import Path
from mmengine.config import Config
from mmengine.hub import get_config
from swin_backbone.workbench.process import prepare_process
prepare_process()
from swin_backbone.openmmlab.config_files import read_config

assert Path({{target!r}}) in Path(swin_backbone.__file__).parents, swin_backbone.__file__
own = get_config('swin_backbone::{CONFIG}'), read_config('swin_backbone::{CONFIG}')
for cfg in (*own, Config.fromfile({{child!r}})):
    assert cfg.model.backbone.type == 'SwinBackbone', cfg
mim = Path(swin_backbone.__file__).parent / '.mim'
assert '_scope_' not in cfg.model, 'what is inherited would be looked for in a scope of that name'
assert (mim / 'tools' / 'train.py').is_file()
assert (mim / 'tools' / 'dist_train.sh').is_file()
sys.argv = ['swin-backbone', 'plot-log', '--help']
runpy.run_path({{script!r}}, run_name='__main__')
"""


def build_library(folder, **options):
    command = ['setup.py', '--quiet', 'build_ext', '--build-lib', folder, '--build-temp', folder]
    return run_python(*command, **options)


def build_wheel(folder, **variables):
    options = ['--quiet', '--no-deps', '--no-build-isolation', '--no-index', '-w', folder]
    run_python('-m', 'pip', 'wheel', *options, '.', **variables)
    (wheel,) = folder.glob('*.whl')
    return wheel


def test_a_build_without_a_compiler(tmp_path):
    result = build_library(tmp_path, CC='false', CXX='false')
    assert 'building extension "swin_backbone.kernels.native.libswin" failed' in result.stdout + result.stderr
    assert not list(tmp_path.rglob('*.so'))


def test_a_library_newer_than_its_sources_stays(tmp_path):
    compiler, calls, built = tmp_path / 'c++', tmp_path / 'calls', tmp_path / 'built'
    compiler.write_text(f'#!/bin/sh\necho >> {calls}\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)

    def compiles(**variables):
        calls.write_text('')
        build_library(built, CXX=str(compiler), **variables)
        return bool(calls.read_text())

    assert compiles()
    assert not compiles()
    assert compiles(CFLAGS='-DOTHER')
    assert compiles()
    (library,) = built.rglob('*.so')
    os.utime(library, (0, 0))
    assert compiles()
    library.unlink()
    assert compiles()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux' or platform.machine() != 'x86_64', reason='made for Linux on x86-64')
@pytest.mark.skipif(shutil.which('c++') is None, reason='there is no C++ compiler')
def test_a_wheel_brings_the_operators(tmp_path):
    wheel = build_wheel(tmp_path)
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith('.so')]
    assert libraries == ['swin_backbone/kernels/native/libswin.so']
    assert wheel.name.split('-')[-3:-1] == ['py3', 'none']  # one file serves every Python


def build_for(platform, folder):
    """Return a wheel for a platform, and the library's bytes."""
    if find_spec('ziglang') is None:
        pytest.skip('zig, the compiler for all platforms, is not installed: make install EXTRAS=wheels')
    wheel = build_wheel(folder, SWIN_BACKBONE_PLATFORM=platform)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if Path(name).suffix in ('.so', '.dylib', '.dll', '.pyd', '.cpp')]
        assert len(names) == 1, names
        assert Path(names[0]).parent == Path('swin_backbone/kernels/native')
        assert 'swin_backbone/.mim/model-index.yml' in archive.namelist()
        return wheel, archive.read(names[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ('platform', 'begin', 'isas'),
    [
        ('manylinux2014_x86_64', b'\x7fELF\x02\x01\x01' + bytes(9) + b'\x03\x00\x3e\x00', X86_64),
        ('manylinux2014_aarch64', b'\x7fELF\x02\x01\x01' + bytes(9) + b'\x03\x00\xb7\x00', ARM64),
        ('macosx_11_0_arm64', b'\xcf\xfa\xed\xfe\x0c\x00\x00\x01', ARM64),
        ('win_amd64', b'MZ', X86_64),
    ],
)
def test_a_wheel_for_a_platform_has_its_library(tmp_path, platform, begin, isas):
    wheel, library = build_for(platform, tmp_path)
    assert wheel.name.endswith(f'-py3-none-{platform}.whl')
    assert library.startswith(begin)
    for isa in (*X86_64, *ARM64):
        assert (b'\0%s\0' % isa.encode() in library) == (isa in isas)
    header = (ROOT / 'csrc' / 'swin.h').read_text()
    for name in re.findall(r'SWIN_API [^(]*?(swin_\w+)\(', header):
        assert b'%s\0' % name.encode() in library
    if platform.startswith('macosx'):
        assert b'\xfa\xde\x0c\xc0' in library  # a signature, required by Apple's processors
    if platform.startswith('manylinux2014'):  # which is glibc 2.17
        versions = {tuple(map(int, v.split(b'.'))) for v in re.findall(rb'\0GLIBC_([\d.]+)', library)}
        assert (2, 2) < max(versions) <= (2, 17)
        assert not re.search(rb'libstdc\+\+|libgomp|libc\+\+', library)


@pytest.fixture
def old_compiler(tmp_path):
    """A compiler without AMX and bfloat16 products, for example GCC 9."""
    compiler = tmp_path / 'old-c++'
    compiler.write_text('#!/bin/sh\ncase "$*" in *amx*|*bf16*) exit 1;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    return compiler


@pytest.mark.skipif(sys.platform != 'linux' or platform.machine() != 'x86_64', reason='the flags are of x86-64')
@pytest.mark.skipif(shutil.which('c++') is None, reason='there is no C++ compiler')
def test_an_old_compiler_builds_what_it_has_flags_for(tmp_path, old_compiler, monkeypatch):
    monkeypatch.setenv('CXX', str(old_compiler))
    sets = list(build_native.supported_sets(build_native.target(), tmp_path))
    assert sets == ['avx512_vnni', 'avx512', 'avx2_vnni', 'avx2']


def test_an_installed_wheel_has_its_configs_and_commands(installed, tmp_path):
    child = tmp_path / 'child.py'
    child.write_text(f"_base_ = 'swin_backbone::{CONFIG}'\n")
    script = next(path for path in (installed / 'bin').iterdir() if path.stem == 'swin-backbone')
    code = LOOK_UP.format(target=str(installed), child=str(child), script=str(script))
    result = run_python('-c', code, folder=tmp_path, path=installed)
    assert result.stdout.startswith('usage: swin-backbone plot-log')


def test_the_model_index_lists_every_config_once():
    listed = []
    for path in load(ROOT / 'model-index.yml')['Import']:
        metafile = load(ROOT / path)
        collections = {collection['Name'] for collection in metafile['Collections']}
        for model in metafile['Models']:
            assert model['In Collection'] in collections
            assert model['Name'] == Path(model['Config']).stem
            listed.append(model['Config'])
    there = {str(path.relative_to(ROOT)) for path in ROOT.glob('configs/[!_]*/*.py')}
    own_data = {name for name in there if 'own' in name or name.startswith('configs/demo/')}
    assert sorted(listed) == sorted(there - own_data)
