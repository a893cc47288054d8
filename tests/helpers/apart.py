"""Call functions in a forked process. A new import of torch would take seconds."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from swin_backbone.kernels.native import availability, library


def call(function, *arguments, **environment):
    """Return the result of a module's `function` in a forked process with environment variables.

    The process chooses the compiled library again.
    """
    with ProcessPoolExecutor(1, mp_context=get_context('fork')) as pool:
        return pool.submit(_call, function, arguments, environment).result()


def _call(function, arguments, environment):
    os.environ.update(environment)
    torch.set_num_threads(1)  # a fork has no OpenMP threads
    library.load_library.cache_clear()
    library.get_libswin.cache_clear()
    availability.find_reason_against_dtype.cache_clear()
    return function(*arguments)
