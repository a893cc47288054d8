"""Fixtures with the package as a wheel."""

import os
import subprocess
import sys

import pytest
from helpers import ROOT


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
    command = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--no-build-isolation', '--no-index']
    command.append('--no-compile')  # of four hundred modules, for two processes
    environment = {**os.environ, 'SWIN_BACKBONE_NATIVE': '0'}  # test_a_wheel_brings_the_operators compiles
    result = subprocess.run(
        [*command, '--target', folder, source], env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    return folder
