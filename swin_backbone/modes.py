"""The modes of torch around a call: tracers, autocast, and tables that are cached in eager mode alone.

Call `find_tracer(x)` where a graph or a transform needs other operations than eager mode, `needs_torch_op()` before a
call of the compiled library, and `may_be_batched(x)` before a read of memory.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from threading import Lock
from typing import Any, Optional

import torch
from torch import Tensor, nn

from .compat import (
    constant_when_compiled,
    count_dispatch_modes,
    find_fake_mode,
    is_exporting,
    is_legacy_batched,
    peek_transform,
)

CACHED_BYTES = 2**26  # limit of each decorated function; about 40 picture sizes near 800x1344
CACHED_TABLES = 16  # never evicted below this number: one picture size needs 8 (4 stages, with and without shift)


def find_tracer(x: Tensor) -> Optional[str]:
    """Return the name of the tracer or transform that is active for `x`, or None in eager mode.

    'torch.func' is a transform (grad, vmap, jvp, ...) or forward-mode AD. Without torch's functions: None.
    """
    if torch.compiler.is_compiling():
        return 'torch.export' if is_exporting() else 'torch.compile'
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # untyped in torch
        return 'torch.jit.trace'
    if x.device.type == 'meta':
        return 'the meta device'
    has_tangents = getattr(torch.autograd.forward_ad, '_current_level', -1) >= 0  # private: a function is a call more
    return 'torch.func' if has_tangents or peek_transform() is not None else None


def needs_torch_op() -> bool:
    """Return whether the compiled library must be called as an operator of torch.

    torch.compile, torch.export and a `TorchDispatchMode` see the library only as operators of torch.
    """
    return torch.compiler.is_compiling() or count_dispatch_modes() > 0


def is_plain_or_fake(tensor: Tensor) -> bool:
    """Return whether a tensor has its elements in its own memory, or stands for such a tensor in a graph."""
    kind: Any = type(tensor)
    return kind is Tensor or kind is nn.Parameter or kind.__module__.startswith('torch._subclasses.')


def may_be_batched(tensor: Tensor) -> bool:
    """Return whether a tensor may be batched.

    True under any transform of `torch.func` or forward-mode AD, and for a batch of `torch.autograd.functional`.
    """
    return find_tracer(tensor) == 'torch.func' or is_legacy_batched(tensor)


def find_autocast_dtype(device_type: str) -> Optional[torch.dtype]:
    """Return the dtype of linear layers under autocast; None: autocast is off, or the device has no autocast."""
    if _has_autocast(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


@constant_when_compiled  # torch.compile of torch 2.11 cannot trace the call
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off: operations keep the dtypes of their inputs."""
    return nullcontext() if find_autocast_dtype(device_type) is None else torch.autocast(device_type, enabled=False)


def find_linear_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which linear layers compute with `x` now."""
    return find_autocast_dtype(x.device.type) or x.dtype


def cached_table(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Cache the tables of a function of sizes, up to `CACHED_BYTES`.

    No table is cached while a graph is traced, or under a transform of `torch.func`, whose wrapped tensors end with
    it. A fake tensor has no values, and serves its own fake mode alone. Tables that a CUDA graph captured are never
    evicted: every replay reads them. A table built during a capture is not cached: it has values only after a replay.
    """
    tables: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()  # the least recently used first
    captured: dict[tuple[Any, ...], Tensor] = {}
    lock = Lock()

    @wraps(build)
    def look_up(*arguments: Any) -> Tensor:
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        if is_traced or peek_transform() is not None:
            return build(*arguments)
        key = find_fake_mode(), *arguments
        # A build without CUDA has no current stream.
        is_captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        with lock:
            table = captured.get(key, tables.get(key))
            if table is not None:
                if is_captured:
                    captured[key] = table
                elif key in tables:
                    tables.move_to_end(key)
                return table
        with torch.inference_mode(False):  # backward cannot save an inference tensor
            table = build(*arguments)
        if not is_captured:
            with lock:
                tables[key] = table
                num_bytes = sum(cached.nbytes for cached in tables.values())
                while num_bytes > CACHED_BYTES and len(tables) > CACHED_TABLES:
                    num_bytes -= tables.popitem(last=False)[1].nbytes
        return table

    return look_up
