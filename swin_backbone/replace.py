"""Replacements of a forward: functions that compute an equal result in less time.

`models/` marks a forward as replaceable. `kernels/` registers replacements for it, each for one backend. In a call, the
replacements of the module's backend make a plan in turn, and the first plan runs. Without a plan, torch's forward runs
under 'auto'. A named backend raises `CannotRun` if its replacement gives a reason. A forward that has no replacement of
the named backend runs in torch.

Every backend respects what a user has changed on a module: a replacement computes only modules that are as built.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from threading import local
from typing import Any, NamedTuple, TypeVar, Union

Forward = TypeVar('Forward', bound=Callable[..., Any])
BACKENDS = ('auto', 'native', 'torch', 'triton')

# A call of a marked forward, ready to run: takes the arguments of the forward without the module, and returns the
# result of the forward.
Plan = Callable[..., Any]
Reason = str  # why a backend cannot compute a call, in a sentence
# None: torch's forward runs, also under a named backend. Code that torch.compile traces tests `isinstance(..., str)`:
# earlier releases of torch evaluate `callable` wrongly for tuples, which some plans are.
PlanOrReason = Union[Plan, Reason, None]


class Replacement(NamedTuple):
    """What a backend computes in the place of a marked forward.

    Attributes:
        backend: one of `BACKENDS`, besides 'auto' and 'torch'.
        make_plan: `make_plan(module, x, *args)` takes the arguments of the forward, and returns `PlanOrReason`. It does
            all checks: a plan runs every input that it was made for.
    """

    backend: str
    make_plan: Callable[..., PlanOrReason]


def replaceable(forward: Forward) -> Forward:
    """Mark `forward(module, x, *args)` as replaceable; `module.backend` is one of `BACKENDS`.

    The marked forward raises `CannotRun`, a ValueError, if the replacement of the named backend returns a reason.
    """
    replacements: list[Replacement] = []
    call_signature = signature(forward)

    @wraps(forward)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        module, *others = call_signature.bind(*args, **kwargs).args if kwargs else args
        for backend, make_plan in replacements:
            if module.backend in (backend, 'auto'):
                answer = make_plan(module, *others)
                if isinstance(answer, str) and module.backend == backend:
                    raise CannotRun(backend, answer)
                if answer is not None and not isinstance(answer, str):
                    return answer(*others)
        return forward(module, *others)

    dispatch.replacements = replacements  # type: ignore[attr-defined]
    return dispatch  # type: ignore[return-value]


def register_replacement(forward: Callable[..., Any], backend: str, make_plan: Callable[..., PlanOrReason]) -> None:
    """Add a replacement to a marked forward."""
    forward.replacements.append(Replacement(backend, make_plan))  # type: ignore[attr-defined]


def is_replaceable(module: Any) -> bool:
    """Return whether the forward of a module is marked."""
    return hasattr(type(module).forward, 'replacements')


def is_replaced(module: Any, *args: Any) -> bool:
    """Return whether a call of a marked forward does not reach torch's: a plan runs, or a named backend raises."""
    replacements = type(module).forward.replacements
    answers = [make_plan(module, *args) for backend, make_plan in replacements if module.backend in (backend, 'auto')]
    return any(answer is not None and not (isinstance(answer, str) and module.backend == 'auto') for answer in answers)


_disabled = local()


@contextmanager
def library_disabled() -> Iterator[None]:
    """Let the compiled library compute nothing in this thread."""
    _disabled.depth = getattr(_disabled, 'depth', 0) + 1
    try:
        yield
    finally:
        _disabled.depth -= 1


def is_library_disabled() -> bool:
    """Return whether the thread is inside `library_disabled`."""
    return getattr(_disabled, 'depth', 0) > 0


class Unsupported(ValueError):
    """The error of a module, tensor or size that a backend does not compute: the reason. Makers of plans catch it."""


class CannotRun(ValueError):
    """The error of a named backend that cannot compute a call; `reason` is a sentence."""

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(backend, reason)  # the arguments of a copy and of a pickle
        self.backend, self.reason = backend, reason

    def __str__(self) -> str:
        return f'backend={self.backend!r} cannot compute this: {self.reason}'
