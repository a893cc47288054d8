"""Random numbers as a function of the position in training: a resumed training draws the same numbers.

mmengine seeds a process once. Each later number depends on all earlier draws: in the process, in its workers, and in
validation. Here the generators of Python, numpy and torch (also CUDA's) are seeded before each use, by the run's seed
and the position. A checkpoint holds only the seed, for any number of workers.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ...compat import preserve_torch_rng

# Uses of random numbers
STEP, BATCH, ORDER, LOSS = range(4)


def seed_rng(*position: int) -> None:
    """Seed the generators of the process by a run's seed, the use of the numbers, and the number of the draw."""
    words = np.random.SeedSequence(position).generate_state(8)
    random.seed(words[:2].tobytes())
    np.random.seed(words[2:6])
    seed = int.from_bytes(words[6:].tobytes(), 'little')
    torch.default_generator.manual_seed(seed)  # torch.manual_seed spends 0.2 ms on an unused device
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Give the generators back their state at the end. The threads of the process share them, and take turns."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with preserve_torch_rng(devices):
        pythons, numpys = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)
