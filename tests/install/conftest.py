"""Fixtures with the package as a wheel."""

import subprocess

import pytest
from helpers import ROOT, run_python


@pytest.fixture(scope='session')
def source(tmp_path_factory):
    """A copy of the checkout, to build in."""
    folder = tmp_path_factory.mktemp('checkout')
    command = ['git', 'ls-files', '--cached', '--others', '--exclude-standard']
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip('the files of the package are unknown: this is no git checkout')
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope='session')
def installed(source, tmp_path_factory):
    """Folder with the files of an installed wheel."""
    folder = tmp_path_factory.mktemp('wheel')
    options = ['--quiet', '--no-deps', '--no-build-isolation', '--no-index', '--no-compile', '--target', folder]
    run_python('-m', 'pip', 'install', *options, source, SWIN_BACKBONE_NATIVE='0')  # without the compiled library
    return folder
