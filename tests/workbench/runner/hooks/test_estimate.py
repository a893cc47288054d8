"""One line after ten steps of a training."""

from types import SimpleNamespace

from swin_backbone.workbench.runner.hooks import estimate
from swin_backbone.workbench.runner.hooks.estimate import EstimateHook


def lines_of(monkeypatch, steps, total, peak=3 * 2**30):
    lines = []
    monkeypatch.setattr(estimate.time, 'monotonic', lambda: float(runner.iter * 2))
    monkeypatch.setattr(estimate, 'measure_peak_memory', lambda: peak)
    runner = SimpleNamespace(iter=0, max_iters=total, logger=SimpleNamespace(info=lines.append))
    hook = EstimateHook()
    hook.before_train(runner)
    for runner.iter in range(steps):
        hook.after_train_iter(runner)
    return lines


def test_one_line_after_ten_steps(monkeypatch):
    (line,) = lines_of(monkeypatch, 30, 1810)
    assert line.startswith(
        '10 steps: 2 s a step, 3.0 GiB of memory at the peak; the remaining steps take about 1:00:00, '
    )
    assert lines_of(monkeypatch, 9, 9) == []
    assert 'memory' not in lines_of(monkeypatch, 10, 20, peak=0)[0]


def test_the_memory_of_this_process_is_known():
    assert estimate.measure_peak_memory() > 2**20


def test_what_is_between_epochs_is_no_time_of_a_step(monkeypatch):
    """Own data of few pictures have less than ten steps in an epoch."""
    lines, clock = [], SimpleNamespace(now=0.0)
    monkeypatch.setattr(estimate.time, 'monotonic', lambda: clock.now)
    monkeypatch.setattr(estimate, 'measure_peak_memory', lambda: 0)
    runner = SimpleNamespace(iter=0, max_iters=40, logger=SimpleNamespace(info=lines.append))
    hook = EstimateHook()
    hook.before_train(runner)
    for _epoch in range(10):
        hook.before_train_epoch(runner)
        clock.now += 20  # workers start
        for _step in range(4):
            clock.now += 0.5
            hook.after_train_iter(runner)
            runner.iter += 1
            if runner.iter == 6:  # a validation inside of an epoch, as in a training by iterations
                clock.now += 100
                hook.after_val(runner)
    (line,) = lines
    assert line.startswith('14 steps: 0.5 s a step; the remaining steps take about 0:00:13, ')
