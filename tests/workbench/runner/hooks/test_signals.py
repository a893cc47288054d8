"""Signals stop a training, or make it save."""

import multiprocessing.util
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.openmmlab.toy_training import config, differing, run, run_ranks, start, train, wait

from swin_backbone.workbench.runner.hooks import signals

RESUMABLE = 75  # EX_TEMPFAIL, a temporary failure
EMA = dict(type='EMAHook', momentum=0.1)


def send(number, *after, **where):
    return dict(type='SendSignal', number=int(number), after=after, **where)


def last(folder):
    path = Path((folder / 'last_checkpoint').read_text())
    return path.name, torch.load(path, weights_only=False)['meta']['iter']


@pytest.mark.parametrize(
    ('number', 'template', 'names'),
    [
        (signal.SIGTERM, None, ('epoch_0_iter_5.pth', 'epoch_1.pth')),
        pytest.param(signal.SIGHUP, None, ('epoch_0_iter_5.pth', 'epoch_1.pth'), marks=pytest.mark.slow),
        (signal.SIGINT, '{:03d}-swin.pth', ('000_iter_5-swin.pth', '001-swin.pth')),
    ],
)
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, record_fault, number, template, names):
    log, settings, (mid, end) = tmp_path / 'log', dict(default_hooks__checkpoint__filename_tmpl=template), names
    assert run(config(tmp_path, epochs=2, hooks=[send(number, 5)], **settings), log=log) == RESUMABLE
    assert last(tmp_path) == (mid, 5)
    assert f'{number.name}: training stops after iteration 5 (exit code 75).' in log.read_text()
    assert f'checkpoint is {tmp_path}/{mid}; --resume goes on from there' in log.read_text()
    (tmp_path / 'last_checkpoint').unlink()
    assert run(config(tmp_path, epochs=1, resume=True, **settings)) == 0
    assert sorted(path.name for path in tmp_path.glob('*.pth')) == [end]  # max_keep_ckpts is 1
    record_fault('signals')


def test_it_saves_once_where_the_interval_saves_too(tmp_path, record_fault):
    log = tmp_path / 'log'
    assert run(config(tmp_path, iterations=9, hooks=[send(signal.SIGTERM, 3)]), log=log) == RESUMABLE
    assert last(tmp_path) == ('iter_3.pth', 3)
    assert log.read_text().count('Saving checkpoint') == 3
    record_fault('signals')


def test_sigusr1_saves_and_goes_on(tmp_path, record_fault):
    settings = dict(epochs=2, default_hooks__checkpoint__max_keep_ckpts=-1)
    assert run(config(tmp_path / 'signalled', hooks=[send(signal.SIGUSR1, 5, 12)], **settings)) == 0
    names = {path.name for path in (tmp_path / 'signalled').glob('*.pth')}
    assert names == {'epoch_0_iter_5.pth', 'epoch_1.pth', 'epoch_1_iter_12.pth', 'epoch_2.pth'}
    assert run(config(tmp_path / 'alone', **settings)) == 0
    assert differing(tmp_path / 'signalled' / 'epoch_2.pth', tmp_path / 'alone' / 'epoch_2.pth') == []
    record_fault('signals', 2)


def test_a_second_signal_stops_at_once(tmp_path, record_fault):
    """Within a second, signals count once, because Ctrl-C under torchrun arrives twice."""
    # two signals within a step: the second signal must stop the training before the end of the step
    twice = [send(signal.SIGTERM, 5), send(signal.SIGTERM, 5, delay=1.1)]
    assert run(config(tmp_path / 'later', epochs=2, hooks=twice)) == -signal.SIGTERM
    assert not (tmp_path / 'later' / 'last_checkpoint').exists()
    twice = [send(signal.SIGINT, 5), send(signal.SIGTERM, 5)]
    assert run(config(tmp_path / 'sooner', epochs=2, hooks=twice)) == RESUMABLE
    record_fault('signals', 2)


def test_workers_outlive_a_signal_to_all_processes(tmp_path, record_fault):
    """Terminals and clusters send signals to whole groups."""
    log = tmp_path / 'log'
    to_all = dict(type='SendSignal', number=int(signal.SIGTERM), after=[5], group=True)
    assert run(config(tmp_path, epochs=2, workers=2, hooks=[to_all]), log=log) == RESUMABLE, log.read_text()[-3000:]
    assert last(tmp_path) == ('epoch_0_iter_5.pth', 5)
    record_fault('signals')


def test_workers_end_when_their_process_does(tmp_path):
    """torchrun sends SIGTERM to all processes, and waits for the end of the processes."""

    def exit_as_python_does():
        train(config(tmp_path, epochs=1, workers=2))
        multiprocessing.util._exit_function()

    of_another_test = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,), daemon=True)
    of_another_test.start()
    log = tmp_path / 'log'
    process = start(exit_as_python_does, log=log)
    deadline = time.monotonic() + 60
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.05)
    of_another_test.kill()
    of_another_test.join()
    assert wait(process) == 0, log.read_text()[-3000:]


def test_ranks_stop_after_the_same_step(tmp_path, record_fault, monkeypatch):
    monkeypatch.setattr(signals, 'AGREEMENT_S', 0)  # an agreement after each step
    cfg = config(tmp_path, epochs=3, hooks=[send(signal.SIGTERM, 6, rank=1)])
    assert run_ranks(cfg, log=tmp_path / 'log') == [RESUMABLE, RESUMABLE]
    assert last(tmp_path) == ('epoch_1_iter_6.pth', 6)
    assert 'A signal to another rank: training stops after iteration 6' in (tmp_path / 'log0').read_text()
    record_fault('signals')


def test_ranks_agree_once_in_a_second_of_the_slowest_rank(monkeypatch):
    """Over NCCL an agreement waits for the GPU."""
    clock, runner, agreed = SimpleNamespace(now=0.0), SimpleNamespace(world_size=2, iter=0), []

    def all_reduce(values, op):
        values *= 2  # the other rank takes twice as long
        agreed.append(runner.iter + 1)

    monkeypatch.setattr(signals, 'all_reduce', all_reduce)
    monkeypatch.setattr(signals, 'time', SimpleNamespace(perf_counter=lambda: clock.now))
    hook = signals.SignalHook()
    hook.before_train(runner)
    hook.close()
    for runner.iter in range(60):
        clock.now += 0.125 if runner.iter < 41 else 5.0
        hook.after_train_iter(runner, 0)
    assert agreed == [*range(1, 42, 4), *range(45, 61)]
    runner.iter, clock.now = 60, clock.now + 0.001
    hook.after_val(runner)  # an agreement at once, and no measure of a step
    assert (len(agreed), hook.next_agreement_iter) == (28, 61)


def test_a_pool_of_a_metric_ends_its_workers(record_fault):
    hook = signals.SignalHook()
    hook.before_train(SimpleNamespace(iter=0))
    try:
        context = multiprocessing.get_context('fork')
        is_running = context.Event()  # Python drops signals that arrive before the end of its fork
        worker = context.Process(target=lambda: (is_running.set(), time.sleep(60)))
        worker.start()
        assert is_running.wait(30)
        os.kill(worker.pid, signal.SIGUSR1)
        worker.terminate()
        worker.join(30)
    finally:
        hook.close()
        worker.kill()
    assert worker.exitcode == -signal.SIGTERM
    record_fault('signals')


@pytest.mark.parametrize('interval', [pytest.param(1, marks=pytest.mark.slow), 9])
def test_a_signal_in_validation_keeps_the_average(tmp_path, record_fault, interval):
    """mmengine validates on the averaged weights."""
    settings = dict(epochs=2, val=1, interval=interval)
    during = send(signal.SIGTERM, 8, stage='after_val_iter')
    assert run(config(tmp_path / 'stopped', hooks=[EMA, during], **settings)) == RESUMABLE
    assert last(tmp_path / 'stopped') == ('epoch_1.pth', 8)
    assert run(config(tmp_path / 'stopped', hooks=[EMA], resume=True, **settings)) == 0
    assert run(config(tmp_path / 'alone', hooks=[EMA], **settings)) == 0
    assert differing(tmp_path / 'stopped' / 'epoch_2.pth', tmp_path / 'alone' / 'epoch_2.pth') == []
    record_fault('signals')


def test_signals_are_handed_back_after_training(tmp_path):
    def check():
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        train(config(tmp_path, epochs=1))
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    assert wait(start(check)) == 0


@pytest.fixture
def hook():
    """A hook of a training, with the handlers of a process in a terminal."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in signals.ACTIONS}
    yield signals.SignalHook()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_ignored_signal_stays_ignored(hook, record_fault):
    """SIGHUP by nohup, and SIGINT of a command that a script runs in the background."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    hook.before_train(SimpleNamespace(iter=0))
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGINT)
    assert not hook.stop_requested
    os.kill(os.getpid(), signal.SIGTERM)
    assert hook.stop_requested
    hook.close()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    record_fault('signals')


@pytest.mark.parametrize('number', [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_without_a_checkpoint_hook_the_status_is_that_of_the_signal(hook, number, record_fault):
    runner = SimpleNamespace(iter=0, world_size=1, hooks=[], logger=SimpleNamespace(warning=lambda _: None))
    hook.before_train(runner)
    os.kill(os.getpid(), number)
    with pytest.raises(signals.StoppedBySignal, match=f'{number.name}: training stops, and saves nothing') as stop:
        hook.after_train_iter(runner, 0)
    assert stop.value.status == 128 + number
    record_fault('signals')
