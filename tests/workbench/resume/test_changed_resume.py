"""A changed training resumes, and one line names the changes."""

import re
import signal

import pytest
import torch
from helpers.openmmlab.toy_training import config, differing, run, run_ranks

from swin_backbone.workbench.runner.hooks import signals

LOOPS = {'epochs': dict(epochs=2), 'iterations': dict(iterations=16, interval=4)}
ENDED_AT = {'epochs': 'epoch_3.pth', 'iterations': 'iter_20.pth'}
LONGER = {'epochs': dict(epochs=3), 'iterations': dict(iterations=20, interval=4)}
BATCH = 'train_dataloader__batch_size'
AVERAGE = [dict(type='EMAHook', momentum=0.1)]
ACCUMULATED = dict(optim_wrapper__accumulative_counts=2)
# settings before and after, and the message
CHANGES = {
    'a smaller batch': ({BATCH: 8}, {BATCH: 2}, '2 images a batch instead of 8'),
    'within an accumulation': ({BATCH: 8, **ACCUMULATED}, {BATCH: 2}, '2 images a batch instead of 8'),
    'more processes': (dict(ranks=1), dict(ranks=2), '2 processes instead of 1'),
    'fewer processes and a larger batch': (
        {'ranks': 2, BATCH: 2, **ACCUMULATED}, {'ranks': 1, BATCH: 4},
        '4 images a batch instead of 2, 1 processes instead of 2'),
    'fewer images': ({}, dict(train_dataloader__dataset__images=6), 'other data, of 6 images instead of 16'),
    'another rate': (
        {}, dict(optim_wrapper__optimizer__lr=0.1), r'the learning rate 0\.\d+ of the config instead of 0\.\d+'),
    'another schedule': (
        {}, dict(param_scheduler=[dict(type='ConstantLR', factor=0.5, by_epoch=False, end=30)]),
        r'the learning rate 0\.005 of the config instead of 0\.\d+'),
    'more batches a step': ({}, ACCUMULATED, '2 batches a step instead of 1'),
    'no moving average': (dict(hooks=AVERAGE), dict(hooks=()), 'the moving average left out'),
}  # fmt: skip


def train(work_dir, log, ranks=1, **settings):
    cfg = config(work_dir, **settings)
    return {run(cfg, log=log)} if ranks == 1 else set(run_ranks(cfg, ranks, log))


def last_words(log):
    return '\n'.join(path.read_text() for path in log.parent.glob('log*'))


def stop_after(iteration):
    return [dict(type='SendSignal', number=int(signal.SIGTERM), after=[iteration])]


@pytest.mark.parametrize(
    'change', [pytest.param(change, marks=[pytest.mark.slow] * (change != 'a smaller batch')) for change in CHANGES]
)
@pytest.mark.parametrize('loop', LOOPS)
def test_a_changed_resume(tmp_path, record_fault, monkeypatch, loop, change):
    monkeypatch.setattr(signals, 'AGREEMENT_S', 0)  # processes agree on a signal after each step
    before, after, message = CHANGES[change]
    log = tmp_path / 'log'
    stopped = 'optim_wrapper__accumulative_counts' in before
    first = {**LOOPS[loop], 'hooks': stop_after(3) if stopped else (), **before}
    assert train(tmp_path / 'work', tmp_path / 'first', **first) == {75 if stopped else 0}
    assert train(tmp_path / 'work', log, resume=True, **{**LONGER[loop], **before, **after}) == {0}, last_words(log)
    text = last_words(log)
    lines = [line for line in text.splitlines() if ' is resumed with ' in line]
    assert len(lines) == 1, text
    assert re.search(rf'(epoch|iter)_\w+\.pth is resumed with {message}(, .*)?: results differ', lines[0])
    ended = torch.load(tmp_path / 'work' / ENDED_AT[loop], weights_only=False)
    assert all(value.isfinite().all() for value in ended['state_dict'].values())
    record_fault('changed_resumes')


@pytest.mark.parametrize('seed', [5, pytest.param(None, marks=pytest.mark.slow)])
def test_the_seed_of_the_checkpoint_stays(tmp_path, record_fault, seed):
    log = tmp_path / 'log'
    assert train(tmp_path / 'work', tmp_path / 'first', epochs=1, randomness=dict(seed=seed)) == {0}
    assert train(tmp_path / 'work', log, epochs=2, resume=True, randomness=dict(seed=6)) == {0}
    assert 'is different from the value in `randomness` config "6"' in last_words(log)
    assert torch.load(tmp_path / 'work' / 'epoch_2.pth', weights_only=False)['meta']['seed'] != 6
    record_fault('changed_resumes')


@pytest.mark.slow
@pytest.mark.parametrize('loop', LOOPS)
def test_training_without_its_average_changes_no_bit(tmp_path, record_fault, loop):
    for folder, hooks in (('never', ()), ('before', AVERAGE)):
        for settings in (dict(LOOPS[loop], hooks=hooks), dict(LONGER[loop], resume=True)):
            assert train(tmp_path / folder, tmp_path / 'log', **settings) == {0}, last_words(tmp_path / 'log')
    assert differing(tmp_path / 'never' / ENDED_AT[loop], tmp_path / 'before' / ENDED_AT[loop]) == []
    record_fault('resumes')


@pytest.mark.slow
@pytest.mark.parametrize('stop', [None, 3])
@pytest.mark.parametrize(('before', 'after'), [('epochs', 'iterations'), ('iterations', 'epochs')])
def test_a_changed_resume_in_the_other_loop(tmp_path, record_fault, before, after, stop):
    """Resume at the end and in the middle of an epoch."""
    log, work_dir = tmp_path / 'log', tmp_path / 'work'
    hooks = stop_after(stop) if stop else ()
    assert train(work_dir, tmp_path / 'first', **LOOPS[before], hooks=hooks) == {75 if stop else 0}
    assert train(work_dir, log, resume=True, **LONGER[after]) == {0}, last_words(log)
    assert f'is resumed with {after} instead of {before}: results differ' in last_words(log)
    meta = torch.load(work_dir / ENDED_AT[after], weights_only=False)['meta']
    assert (meta['iter'], meta['exact_resume']['batches_done']) == ((24, 0) if after == 'epochs' else (20, 20))
    record_fault('changed_resumes')


@pytest.mark.slow
def test_epochs_keep_their_meaning_with_another_batch(tmp_path):
    """The rate falls after the second epoch with any batch size."""
    step = [dict(type='MultiStepLR', milestones=[2], by_epoch=True, convert_to_iter_based=True)]
    for batch, length in ((8, 2), (4, 4)):
        work_dir, log = tmp_path / f'{batch}', tmp_path / f'log-{batch}'
        settings = dict(param_scheduler=step, default_hooks__checkpoint__max_keep_ckpts=-1)
        assert train(work_dir, log, epochs=1, **settings) == {0}
        assert train(work_dir, log, epochs=3, resume=True, **{BATCH: batch}, **settings) == {0}, last_words(log)
        rates = {}
        for epoch in (1, 2, 3):
            saved = torch.load(work_dir / f'epoch_{epoch}.pth', weights_only=False)
            rates[epoch] = saved['optimizer']['param_groups'][0]['lr']
            assert epoch == 1 or saved['meta']['iter'] == epoch * length
        assert rates == {1: 0.01, 2: pytest.approx(0.001), 3: pytest.approx(0.001)}
