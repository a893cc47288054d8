"""Random numbers as a function of the position in training, so that a resumed training draws the same ones.

mmengine seeds a process once, and from then on each random number depends on all that were drawn before it: in the
process, in its workers, and by the validation in between. Here Python's, numpy's and torch's generators (CUDA's too)
are seeded before whatever draws from them, by the run's seed and the place: nothing has to be saved but the seed, no
matter how many workers load ahead.
"""

import random

import numpy as np
import torch

# What is drawn for
STEP, BATCH, ORDER = range(3)


def seed_generators(*place: int) -> None:
    """Seed this process's generators by `place`: a run's seed, what the numbers are for, and which of those."""
    words = np.random.SeedSequence(place).generate_state(8)
    random.seed(words[:2].tobytes())
    np.random.seed(words[2:6])
    seed = int.from_bytes(words[6:].tobytes(), 'little')
    torch.default_generator.manual_seed(seed)  # torch.manual_seed spends 0.2 ms on a device that is not in use
    for name in ('cuda', 'npu', 'musa'):
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            device.manual_seed_all(seed)
