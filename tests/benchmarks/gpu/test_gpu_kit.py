"""benchmarks/gpu: what runs on a GPU machine without network, on a CPU."""

import json
import os
import re
import subprocess
import sys

import pytest
from helpers import ROOT

KIT = ROOT / 'benchmarks' / 'gpu'


def on_device(*arguments, **environment):
    return subprocess.run(
        ['bash', KIT / 'on_device.sh', *arguments],
        cwd=ROOT,
        env={**os.environ, 'PYTHON': sys.executable, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', **environment},
        capture_output=True,
        text=True,
        timeout=1200,
    )


@pytest.mark.parametrize('arguments', [(), ('--cpu',), ('--cpu', 'check', 'reports'), ('cpu',)])
def test_a_stage_that_is_not_there_is_named_before_anything_runs(tmp_path, arguments):
    result = on_device(*arguments, OUT=str(tmp_path / 'out'))
    assert result.returncode == 2
    assert re.fullmatch(r'on_device: .*name (a stage: )?check, report, tune or compile\n', result.stderr)
    assert not (tmp_path / 'out').exists()


def test_wheels_that_do_not_install_end_it(tmp_path):
    (tmp_path / 'benchmarks' / 'gpu').mkdir(parents=True)
    (tmp_path / 'benchmarks' / 'gpu' / 'report.py').touch()
    result = subprocess.run(
        ['bash', KIT / 'on_device.sh', 'check'],
        cwd=tmp_path,
        env={**os.environ, 'PYTHON': sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == 'on_device: the wheels in .wheels do not install'
    assert not (tmp_path / '.wheels' / 'installed').exists()


def test_all_that_is_fetched_is_pinned():
    names = [line for line in (KIT / 'requirements.txt').read_text().splitlines() if not line.startswith('#')]
    built = re.search(r'pip wheel .*?((?: onedl-\w+)+)$', (KIT / 'prepare.sh').read_text(), re.M)
    pinned = re.findall(r'^(.+?)==', (ROOT / 'constraints' / 'onedl.txt').read_text(), re.M)
    assert {*names, *built[1].split()} <= set(pinned)
    assert len(names) == 8


def test_a_stage_has_an_end(tmp_path):
    result = on_device('--cpu', 'check', OUT=str(tmp_path), LIMIT='0.1')
    assert result.returncode == 1
    assert 'on_device: check was stopped after 0.1 s' in (tmp_path / 'check.txt').read_text()


@pytest.mark.slow
def test_every_stage_on_a_cpu(tmp_path):
    pytest.importorskip('triton', reason='triton is not installed')
    result = on_device('--cpu', 'check', 'report', 'tune', OUT=str(tmp_path))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert ' tests collected' in (tmp_path / 'check.txt').read_text()
    rows = {
        stage: [row['what'] for row in json.loads((tmp_path / f'{stage}.json').read_text())]
        for stage in ('report', 'tune')
    }
    for kind in ('attention', 'precision', 'a captured forward', 'forward, swin_backbone', 'step, swin_backbone'):
        assert [what for what in rows['report'] if what.startswith(kind)], kind
    assert [what for what in rows['tune'] if what.startswith('tuning')]
    assert not [what for what in rows['tune'] if what.startswith('forward')]
