"""What `make` runs, without running it."""

import os
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT

pytestmark = pytest.mark.skipif(not shutil.which('make'), reason='make is not installed')


@pytest.mark.parametrize('goal', ['install', 'test'])
@pytest.mark.parametrize('env', ['onedl', 'openmmlab', 'core'])
def test_sources_newer_than_the_library_are_compiled_into_an_environment_that_is_there(tmp_path, goal, env):
    """`git pull` can bring another version of csrc/swin.h: the package refuses a library of the version before."""
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'python').symlink_to(sys.executable)
    (tmp_path / '.installed').touch()
    os.utime(tmp_path / '.installed', (2**32, 2**32))  # newer than every file that the installation needs
    command = ['make', '-n', goal, f'ENV={env}', f'VENV={tmp_path}']
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.count('setup.py --quiet build_ext --inplace') == 1, printed
    assert 'tools/install.sh' not in printed
