"""Run the commands of the documentation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

OWN_DATA = (ROOT / 'docs' / 'guides' / 'own_data.md').read_text()
COMMANDS = re.findall(r'^```bash\n(.*?)^```', OWN_DATA, flags=re.M | re.S)
LIMIT_S = 900


@pytest.mark.slow
def test_own_data_from_pictures_to_predictions(tmp_path):
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    pytest.importorskip('mmseg', reason='mmseg is not installed')
    for name in ('tools', 'configs'):
        (tmp_path / name).symlink_to(ROOT / name)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
    environment = {**os.environ, 'PATH': path, 'PYTHONPATH': str(ROOT)}
    for command in COMMANDS:
        result = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert result.returncode == 0, f'{command}\n{result.stdout[-2000:]}{result.stderr[-2000:]}'
    assert len(list((tmp_path / 'work_dirs' / 'browse').glob('*.jpg'))) == 2
    for name in ('shapes', 'areas'):
        assert len(list((tmp_path / 'work_dirs' / name / 'seen' / 'overlays').glob('*.jpg'))) == 8
    assert len(list((tmp_path / 'work_dirs' / 'areas' / 'seen' / 'labels').glob('*.png'))) == 8
