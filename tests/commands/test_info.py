"""`python -m swin_backbone info`, with all packages and with missing packages."""

import os
import sys
from pathlib import Path

import pytest
from helpers import ROOT, run_python
from helpers.kernels import refusal

from swin_backbone.commands import info
from swin_backbone.version import __version__


def facts(printed):
    """Return the lines of a report as a dict, by part and name."""
    part, report = '', {}
    for line in printed.splitlines():
        if line.startswith('  '):
            name, value = line.strip().split(': ', 1)
            report[part, name] = value
        else:
            part = line
    return report


def test_a_report_of_this_environment(capsys, monkeypatch):
    import torch

    from swin_backbone.kernels.native.library import load_library

    monkeypatch.setenv('SWIN_BACKBONE_LOAD_MIB', '4096')
    info.print_info()
    report = facts(capsys.readouterr().out)
    assert {part for part, _ in report} == set(info.SECTIONS)
    assert report['system', 'swin_backbone'].startswith(__version__)
    assert f'torch {torch.__version__.partition("+")[0]}' in report['packages', 'others']
    assert 'SWIN_BACKBONE_LOAD_MIB=4096' in report['system', 'environment variables']
    assert report['packages', 'stack'] in ('onedl', 'openmmlab', 'lite')
    library, reason = load_library()
    for words in [*library.isas, f'int8 by {library.int8_products};'] if library else [reason]:
        assert words in report['backends', 'compiled library']
    for name in ('float32', 'bfloat16'):
        reason = refusal(getattr(torch, name))
        assert report['backends', f'cpu, {name}'] == (f'torch: {reason}' if reason else 'native')
    assert not [value for value in report.values() if value.startswith('fails: ')]


def test_the_command_finds_what_the_package_finds(tmp_path):
    """A command imports no names of the package by itself."""
    report = facts(run_python('-m', 'swin_backbone', 'info', folder=tmp_path, path=str(ROOT)).stdout)
    assert not report['backends', 'cpu, float32'].startswith('fails: ')


def test_a_report_where_packages_are_missing(tmp_path):
    missing = ('torch', 'mmengine', 'mmcv', 'safetensors', 'mmdet', 'mmseg')
    lines = ['import sys', *(f'sys.modules[{module!r}] = None' for module in missing)]
    (tmp_path / 'sitecustomize.py').write_text('\n'.join(lines))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    result = run_python('-m', 'swin_backbone', 'info', folder=tmp_path, path=path)
    assert result.stderr == ''
    report = facts(result.stdout)
    assert {part for part, _ in report} == set(info.SECTIONS)
    assert report['system', 'Python'].startswith('.'.join(map(str, sys.version_info[:3])))
    assert report['backends', 'cpu, float32'].startswith('fails: ')
    assert f'{os.cpu_count()} CPUs' in report['devices', 'cpu']


@pytest.mark.parametrize(
    ('installed', 'stack'),
    [
        ([], 'none: '),
        (['mmengine', 'mmcv-lite'], 'lite'),
        (['mmengine', 'mmcv', 'mmdet'], 'openmmlab'),
        (['onedl-mmengine', 'onedl-mmcv'], 'onedl'),
        (['onedl-mmengine', 'onedl-mmcv', 'mmdet'], 'mixed: onedl-mmengine, onedl-mmcv, mmdet; '),
        (['mmengine', 'onedl-mmcv', 'mmcv'], 'broken: onedl-mmcv and mmcv overwrite each other; '),
    ],
)
def test_which_stack_is_installed(monkeypatch, installed, stack):
    monkeypatch.setattr(info, '_list_installed', lambda names: [(name, '1.0') for name in names if name in installed])
    answer = info.find_stack()
    assert answer.startswith(stack) if stack.endswith(' ') else answer == stack


def test_a_path_does_not_name_the_user(monkeypatch):
    monkeypatch.setattr(Path, 'home', lambda: Path('/home/somebody'))
    assert info._shorten(Path('/home/somebody/swin')) == '~/swin'


def test_the_citation_is_of_this_version():
    assert f'\nversion: {__version__}\n' in (ROOT / 'CITATION.cff').read_text()
