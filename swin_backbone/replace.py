"""Replacements of a forward: functions that compute an equal result in less time.

`models/` marks a forward as replaceable. `kernels/` registers replacements for it, each for one backend. A call of a
marked forward runs the first replacement of the module's backend that can run. If none can, torch's forward runs under
'auto', and a named backend raises `CannotRun`. A forward that has no replacement of the named backend runs in torch.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Literal, NamedTuple, TypeVar

Forward = TypeVar('Forward', bound=Callable[..., Any])
BACKENDS = ('auto', 'native', 'torch', 'triton')


class Replacement(NamedTuple):
    """A function that runs in place of a marked forward.

    Attributes:
        backend: one of `BACKENDS`, besides 'auto' and 'torch'.
        can_run: `can_run(module, x, *args, raise_error=False)` takes the arguments of the marked forward, and returns
            what `run` needs of the module: the module itself, or parts of the module. False: `run` cannot compute the
            call. With `raise_error`, a refusal raises `CannotRun`.
        run: `run(parts, x, *args)` takes the result of `can_run` in the place of the module, and returns the result of
            the forward.
    """

    backend: str
    can_run: Callable[..., Any]
    run: Callable[..., Any]


def replaceable(forward: Forward) -> Forward:
    """Mark `forward(module, x, *args)` as replaceable; `module.backend` is one of `BACKENDS`.

    The marked forward raises `CannotRun`, a ValueError, if `module.backend` names a replacement that cannot run.
    """
    replacements: list[Replacement] = []
    parameters = signature(forward)

    @wraps(forward)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        module, *others = parameters.bind(*args, **kwargs).args if kwargs else args
        for backend, can_run, run in replacements:
            is_named = module.backend == backend
            if is_named or module.backend == 'auto':
                parts = can_run(module, *others, raise_error=is_named)
                if parts:
                    return run(parts, *others)
        return forward(module, *others)

    dispatch.replacements = replacements  # type: ignore[attr-defined]
    return dispatch  # type: ignore[return-value]


def register_refusal(forward: Callable[..., Any], backend: str, reason: str) -> None:
    """Let a backend refuse all calls of a marked forward; `reason` is a sentence."""

    def can_run(*_args: Any, raise_error: bool = False) -> bool:
        return refuse(backend, reason, raise_error)

    register(forward, backend, can_run, forward)


def register(forward: Callable[..., Any], backend: str, can_run: Callable[..., Any], run: Callable[..., Any]) -> None:
    """Add a replacement to a marked forward: `run` computes the calls that `can_run` allows."""
    forward.replacements.append(Replacement(backend, can_run, run))  # type: ignore[attr-defined]


class CannotRun(ValueError):
    """The error of a named backend that cannot compute a call; `reason` is a sentence."""

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(backend, reason)  # the arguments of a copy and of a pickle
        self.backend, self.reason = backend, reason

    def __str__(self) -> str:
        return f'backend={self.backend!r} cannot compute this: {self.reason}'


def refuse(backend: str, reason: str, raise_error: bool) -> Literal[False]:
    """Return False, or raise `CannotRun` if `raise_error`. A `can_run` returns the result."""
    if raise_error:
        raise CannotRun(backend, reason)
    return False
