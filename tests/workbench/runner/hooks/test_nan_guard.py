"""A step with a loss or gradient that is not finite is skipped, without further effect."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.kernels.waits import Device
from helpers.openmmlab.toy_training import config, differing, run, run_ranks, start, tensors_of, train_and_say, wait
from mmengine.optim import OptimWrapper
from torch import nn

from swin_backbone import NonFiniteGuardHook

KEEP_ALL = dict(default_hooks__checkpoint__max_keep_ckpts=-1)


def spoilt(folder, spoil, *, code=0, iterations=6, ranks=1, **settings):
    """Train with infinite or NaN values of `spoil`, by iteration, to an exit code. Return the log."""
    cfg = config(
        folder, iterations=iterations, model__spoil={str(k): v for k, v in spoil.items()}, **KEEP_ALL, **settings
    )
    log = folder.with_name(f'log_{folder.name}')
    if ranks > 1:
        codes, log = set(run_ranks(cfg, ranks, log)), Path(f'{log}0')
    else:
        codes = {wait(start(train_and_say, cfg, log=log))}
    assert codes == {code}, log.read_text()[-3000:]
    return log.read_text()


def is_finite(checkpoint):
    return all(torch.isfinite(value).all() for value in tensors_of(checkpoint).values() if value.is_floating_point())


def check_skipped(folder, first, last, then=None):
    """Between two checkpoints no weight, no state of the optimizer and no statistic has moved, until a third."""
    one, other = folder / f'iter_{first}.pth', folder / f'iter_{last}.pth'
    assert differing(one, other) == []
    assert is_finite(other)
    assert then is None or differing(other, folder / f'iter_{then}.pth') != []


UNSCALED = dict(optim_wrapper__type='CpuAmp', optim_wrapper__enabled=False)


@pytest.mark.parametrize(('what', 'settings'), [('loss_a', {}), ('gradient', {}), ('gradient', UNSCALED)])
def test_a_step_is_skipped_with_its_reason_and_images(tmp_path, record_fault, what, settings):
    message = spoilt(tmp_path / 'work', {2: what}, **settings)
    check_skipped(tmp_path / 'work', 2, 3, 4)
    warning = next(
        line for line in message.splitlines() if 'WARNING - Iteration 3: step skipped, number 1 in a row' in line
    )
    reason = 'loss_a nan' if what == 'loss_a' else 'gradient norm'
    assert f'Not finite: {reason}; images: picture_' in warning
    assert warning.count('.png') == 2
    assert 'loss_b' not in warning
    record_fault('non_finite')


def test_statistics_of_batch_norm_stay_finite(tmp_path, record_fault):
    message = spoilt(tmp_path / 'work', {}, iterations=8, train_dataloader__dataset__bad=[3])
    assert is_finite(tmp_path / 'work' / 'iter_8.pth')
    warnings = [line for line in message.splitlines() if 'step skipped' in line]
    assert len(warnings) == 1
    assert 'picture_3.png' in warnings[0]
    record_fault('non_finite')


def test_many_skipped_steps_stop_training(tmp_path, record_fault):
    spoil = dict.fromkeys((1, 2, 4, 5, 6), 'loss_b')  # 2 in a row, then 3
    message = spoilt(tmp_path / 'work', spoil, code=1, iterations=9)
    assert 'training stops at iteration 7, after 3 skipped steps in a row. Not finite: loss_b nan' in message
    assert f'The last whole checkpoint is {tmp_path}/work/iter_7.pth; --resume goes on from there.' in message
    assert 'Traceback' not in message
    assert is_finite(tmp_path / 'work' / 'iter_7.pth')
    record_fault('non_finite', 5)


def test_an_accumulation_is_one_step(tmp_path, record_fault):
    message = spoilt(tmp_path / 'work', {3: 'loss_a'}, iterations=9, optim_wrapper__accumulative_counts=3)
    check_skipped(tmp_path / 'work', 3, 6, 9)
    warning = next(line for line in message.splitlines() if 'Iteration 6: step skipped' in line)
    assert warning.count('.png') == 2  # pictures of the bad batch only
    record_fault('non_finite')


@pytest.mark.parametrize('what', ['loss_a', pytest.param('gradient', marks=pytest.mark.slow)])
def test_ranks_skip_together(tmp_path, record_fault, what):
    message = spoilt(tmp_path / 'work', {2: what}, ranks=2, model__rank_to_spoil=1)
    check_skipped(tmp_path / 'work', 2, 3, 6)
    assert 'Not finite on rank 1: ' in message
    record_fault('non_finite')


def test_a_skipped_loss_leaves_the_loss_scale(tmp_path, record_fault):
    spoilt(tmp_path / 'work', {2: 'loss_a'}, optim_wrapper__type='CpuAmp')
    check_skipped(tmp_path / 'work', 2, 3)
    scales = [
        torch.load(tmp_path / 'work' / f'iter_{n}.pth', weights_only=False)['optimizer']['loss_scaler']['scale']
        for n in (2, 3)
    ]
    assert scales == [1024, 1024]
    record_fault('non_finite')


def test_an_overflow_counts_at_a_scale_of_1(tmp_path, record_fault):
    settings = dict(optim_wrapper__type='CpuAmp', optim_wrapper__init_scale=4.0)
    message = spoilt(tmp_path / 'work', dict.fromkeys(range(9), 'gradient'), code=1, iterations=9, **settings)
    first = next(line for line in message.splitlines() if 'step skipped' in line)
    assert 'Iteration 3: step skipped, number 1 in a row' in first  # at 4 and 2 the scaler halves the scale
    assert 'training stops at iteration 5' in message
    record_fault('non_finite', 5)


def test_a_finite_run_has_the_bits_of_an_unwatched_run(tmp_path):
    assert run(config(tmp_path / 'watched', iterations=5)) == 0
    assert run(config(tmp_path / 'alone', iterations=5, default_hooks__finite=None)) == 0
    assert differing(tmp_path / 'watched' / 'iter_5.pth', tmp_path / 'alone' / 'iter_5.pth') == []


def test_a_step_waits_once_for_the_device(recwarn):
    """mmengine reads the loss terms for the log; the hook reads them after a skipped step alone."""
    model = nn.Linear(3, 1)
    runner = SimpleNamespace(model=model, optim_wrapper=OptimWrapper(torch.optim.SGD(model.parameters(), 0.1)), iter=0)
    hook, outputs = NonFiniteGuardHook(), dict(losses=torch.ones(2), acc=0.5)
    hook.before_train(runner)
    with Device() as device:
        for step in range(3):
            hook.before_train_iter(runner, step)
            loss = model(torch.ones(2, 3)).mean()
            runner.optim_wrapper.update_params(loss)
            hook.after_train_iter(runner, step, {}, dict(outputs, loss=loss, loss_a=loss, loss_b=loss))
    assert device.waits == {'tolist': 3}
    assert not hook.batches
    assert not recwarn.list
