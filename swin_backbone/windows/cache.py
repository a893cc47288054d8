"""Bounded caches of index tables."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch

from ..compat import fake_mode

Table = TypeVar('Table')

CACHED_TABLES = 16  # of each kind: one input size has 8 grids, two shifts in each of four stages


def cached_table(build: Callable[..., Table]) -> Callable[..., Table]:
    """Decorate a function of sizes: cache its tables, but build them anew where a graph is recorded.

    Fake tensors have no values and serve their own fake mode alone.
    """

    @lru_cache(maxsize=CACHED_TABLES)
    def cached(_fake_mode: Any, *sizes: Any) -> Table:
        with torch.inference_mode(False):  # backward cannot save an inference tensor
            return build(*sizes)

    @wraps(build)
    def find(*sizes: Any) -> Table:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # untyped in torch
            return build(*sizes)
        return cached(fake_mode(), *sizes)

    return find
