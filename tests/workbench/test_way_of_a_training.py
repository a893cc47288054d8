"""How much of this package runs before `Runner.train`: functions, lines and files on the way of a training."""

import sys

import pytest
from helpers import ROOT
from helpers.in_process import forget_instances, run
from helpers.openmmlab.own_data import DETECTION, make_own_data

from swin_backbone.workbench.data import annotations
from swin_backbone.workbench.runner.safe_runner import SafeRunner

PLACES = tuple(str(ROOT / folder) for folder in ('swin_backbone', 'tools'))


class Begins(SystemExit):
    """The training begins."""


def begin(runner):
    sys.setprofile(None)
    raise Begins(0)


def called_by(*words):
    """Return the code of the functions and methods that a tool calls before the training."""
    called = set()
    annotations._known.clear()  # of the command before

    def profile(frame, event, _):
        code = frame.f_code
        if event == 'call' and code.co_filename.startswith(PLACES) and not code.co_name.startswith('<'):
            called.add(code)

    sys.setprofile(profile)
    try:
        assert run(*words).returncode == 0
    finally:
        sys.setprofile(None)
        forget_instances()
    return called


def size_of(called):
    """Return the numbers of functions, of their lines, and of files."""
    lines = sum(max(line for *_, line in code.co_lines() if line) - code.co_firstlineno + 1 for code in called)
    return len(called), lines, len({code.co_filename for code in called})


@pytest.mark.skipif(sys.version_info < (3, 10), reason='co_lines is new in Python 3.10')
def test_the_way_of_a_training_is_short(tmp_path, monkeypatch):
    """With an index, and on a first run, which writes the index."""
    monkeypatch.setenv('SWIN_BACKBONE_DATA', str(tmp_path / 'indices'))
    monkeypatch.setattr(SafeRunner, 'train', begin)
    sizes = []
    for root in (make_own_data(tmp_path / 'a'), make_own_data(tmp_path / 'b'), tmp_path / 'b'):  # the first imports
        words = ['--work-dir', tmp_path / 'work', '--cfg-options', 'model.backbone.init_cfg=None']
        called = called_by('tools/train.py', DETECTION, '--data', root, *words)
        sizes.append(size_of(called))
    assert all(size <= largest for size, largest in zip(sizes[2], (155, 2000, 45))), sizes
    assert all(size <= largest for size, largest in zip(sizes[1], (200, 2750, 50))), sizes
