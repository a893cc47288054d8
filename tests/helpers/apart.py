"""Calls in a forked process, which has all modules: to import torch takes seconds."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from swin_backbone.backends.native import availability, library


def call(function, *arguments, **environment):
    """What `function`, of a module, gives where these variables are set; whatever it sets stays in its process.

    The compiled library is chosen anew.
    """
    with ProcessPoolExecutor(1, mp_context=get_context('fork')) as pool:
        return pool.submit(_call, function, arguments, environment).result()


def _call(function, arguments, environment):
    os.environ.update(environment)
    torch.set_num_threads(1)  # the threads of OpenMP do not come along with a fork
    library.load.cache_clear()
    availability.why_not_in.cache_clear()
    return function(*arguments)
