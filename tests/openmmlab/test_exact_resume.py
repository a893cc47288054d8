"""A training that was killed with kill -9 and resumed gives the bits of one that was not."""

import os
import random
import signal
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from toy_training import config, differing, run, run_ranks

SEND = 'SendSignal'
EMA = dict(type='EMAHook', momentum=0.1, update_buffers=True)


def kill(after):
    return dict(type=SEND, number=int(signal.SIGKILL), after=[after])


def save(after):
    return dict(type=SEND, number=int(signal.SIGUSR1), after=[after])


def check(tmp_path, killed_after, *, saved_after=None, runner=run, kills=None, **settings):
    """Train without and with a kill, and compare the bits at the end."""
    hooks = settings.pop('hooks', [])
    log = tmp_path / 'log'
    stop = [kill(killed_after), *([save(saved_after)] if saved_after else [])]
    good = [0, 0] if runner is run_ranks else 0
    bad = [-signal.SIGKILL] * 2 if runner is run_ranks else -signal.SIGKILL
    assert runner(config(tmp_path / 'whole', hooks=hooks, **settings), log=log) == good, log.read_text()[-3000:]
    assert runner(config(tmp_path / 'killed', hooks=hooks + stop, **settings), log=log) == bad
    resumed = config(tmp_path / 'killed', hooks=hooks, resume=True, **settings)
    assert runner(resumed, log=log) == good
    final = Path((tmp_path / 'whole' / 'last_checkpoint').read_text()).name
    assert differing(tmp_path / 'whole' / final, tmp_path / 'killed' / final) == []


def test_by_epochs_in_the_middle_of_one(tmp_path):
    check(tmp_path, 12, saved_after=10, epochs=2, hooks=[EMA])
