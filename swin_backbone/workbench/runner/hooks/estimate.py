"""One line after the first steps of a training: the time of a step, the time to the end and the peak of memory."""

import sys
import time
from datetime import timedelta
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner

STEPS = 10
GIB = 2**30


class EstimateHook(Hook):
    """Log the line after ten steps. The first step, which compiles and allocates, is not in the time of a step."""

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        self._done, self._start = 0, 0.0

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        self._done += 1
        if self._done == 1:
            self._start = time.monotonic()
        if self._done == STEPS:
            seconds = (time.monotonic() - self._start) / (STEPS - 1)
            remaining = timedelta(seconds=round(seconds * (runner.max_iters - runner.iter - 1)))
            memory = f', {peak / GIB:.1f} GiB of memory at the peak' if (peak := measure_peak_memory()) else ''
            runner.logger.info(
                f'{STEPS} steps: {seconds:.3g} s a step{memory}; the remaining steps take about {remaining}, and '
                'validations come on top'
            )


def measure_peak_memory() -> int:
    """Return the largest memory of the process in bytes: of the GPU with one, else of the CPU; 0 if it is unknown."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return 0
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == 'darwin' else 1024 * largest
