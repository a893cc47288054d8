"""One line after the first steps of a training: the time of a step, the time to the end and the peak of memory."""

import sys
import time
from datetime import timedelta
from typing import Any, Optional

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner

TIMED_STEPS = 9  # of ten steps: the first is not timed
GIB = 2**30


class EstimateHook(Hook):
    """Log the line after ten steps, or more in short epochs.

    A step is timed from the end of the step before. The first step of an epoch, which starts workers, and the first
    after a validation do not count, nor does the first of all, which compiles and allocates.
    """

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        self._num_steps = self._num_timed = 0
        self._seconds = 0.0  # duration of the timed steps
        self._last_end: Optional[float] = None  # end of the step before, in seconds; None if more than a step follows

    def before_train_epoch(self, runner: Runner) -> None:
        self._last_end = None

    def after_val(self, runner: Runner) -> None:
        self._last_end = None

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if self._num_timed == TIMED_STEPS:
            return
        now = time.monotonic()
        self._num_steps += 1
        if self._last_end is not None:
            self._num_timed += 1
            self._seconds += now - self._last_end
        self._last_end = now
        if self._num_timed == TIMED_STEPS:
            seconds = self._seconds / TIMED_STEPS
            remaining = timedelta(seconds=round(seconds * (runner.max_iters - runner.iter - 1)))
            memory = f', {peak / GIB:.1f} GiB of memory at the peak' if (peak := measure_peak_memory()) else ''
            runner.logger.info(
                f'{self._num_steps} steps: {seconds:.3g} s a step{memory}; the remaining steps take about {remaining}, '
                'and validations come on top'
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
