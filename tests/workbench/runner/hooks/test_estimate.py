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
