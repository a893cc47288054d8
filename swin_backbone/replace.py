"""Replacements of a forward: functions that compute an equal result in less time.

`models/` marks a forward as replaceable. `kernels/` registers replacements for it, each for one backend. A call tries
the replacements of the module's backend in order, and runs the first plan. Without a plan, torch's forward runs under
'auto', and a named backend raises `CannotRun`. A forward that has no replacement of the named backend runs in torch.

Every backend respects what a user has changed on a module: a replacement computes only modules that are as built.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, wraps
from inspect import signature
from operator import is_
from threading import local
from typing import Any, NamedTuple, Optional, TypeVar, Union
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .compat import constant_when_compiled
from .modes import is_recorded

Forward = TypeVar('Forward', bound=Callable[..., Any])
Modules = dict[str, Any]  # inside a layer, by name
BACKENDS = ('auto', 'native', 'torch', 'triton')

# A call of a marked forward, ready to run: takes the arguments of the forward without the module, and returns the
# result of the forward.
Plan = Callable[..., Any]
# A plan; or an obstacle, a sentence on why there is no plan; or None: torch's forward runs under every backend.
Planned = Union[Plan, str, None]


class Replacement(NamedTuple):
    """A backend's plans of a marked forward.

    Attributes:
        backend: one of `BACKENDS`, besides 'auto' and 'torch'.
        plan: `plan(module, x, *args)` takes the arguments of the forward, and does all checks: a plan does not
            raise.
    """

    backend: str
    plan: Callable[..., Any]  # returns `Planned`


def replaceable(forward: Forward) -> Forward:
    """Mark `forward(module, x, *args)` as replaceable; `module.backend` is one of `BACKENDS`.

    The marked forward raises `CannotRun`, a ValueError, if `module.backend` names a backend without a plan.
    """
    replacements: list[Replacement] = []
    parameters = signature(forward)

    @wraps(forward)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        module, *others = parameters.bind(*args, **kwargs).args if kwargs else args
        for backend, plan in replacements:
            if module.backend in (backend, 'auto'):
                planned = plan(module, *others)
                if isinstance(planned, str) and module.backend == backend:
                    raise CannotRun(backend, planned)
                if planned is not None and not isinstance(planned, str):
                    return planned(*others)
        return forward(module, *others)

    dispatch.replacements = replacements  # type: ignore[attr-defined]
    return dispatch  # type: ignore[return-value]


def register(forward: Callable[..., Any], backend: str, plan: Callable[..., Any]) -> None:
    """Add a replacement to a marked forward."""
    forward.replacements.append(Replacement(backend, plan))  # type: ignore[attr-defined]


def register_refusal(forward: Callable[..., Any], backend: str, reason: str) -> None:
    """Let a backend refuse all calls of a marked forward; `reason` is a sentence."""
    register(forward, backend, lambda *_: reason)


def has_plan(module: Any, *args: Any) -> Optional[bool]:
    """Return whether a call of a module's forward runs a plan; None: the forward is not marked."""
    replacements = getattr(type(module).forward, 'replacements', None)
    if replacements is None:
        return None
    return any(callable(plan(module, *args)) for backend, plan in replacements if module.backend in (backend, 'auto'))


_alone = local()


@contextmanager
def torch_alone() -> Iterator[None]:
    """Let the compiled library compute nothing in this thread."""
    _alone.depth = getattr(_alone, 'depth', 0) + 1
    try:
        yield
    finally:
        _alone.depth -= 1


def is_torch_alone() -> bool:
    """Return whether the thread is inside `torch_alone`."""
    return getattr(_alone, 'depth', 0) > 0


class CannotRun(ValueError):
    """The error of a named backend that cannot compute a call; `reason` is a sentence."""

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(backend, reason)  # the arguments of a copy and of a pickle
        self.backend, self.reason = backend, reason

    def __str__(self) -> str:
        return f'backend={self.backend!r} cannot compute this: {self.reason}'


Read = TypeVar('Read')
OF_ALL_MODULES = [*nn.Module().__dict__]  # attributes, the first of every module
HOOKS = '_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks'
NAMED = '_parameters', '_buffers', '_modules', *HOOKS  # attributes of a module with names or numbers
IMMUTABLE = int, float, str, tuple, type(None), torch.dtype, torch.device
OWNERS = 'swin_backbone', 'torch'  # packages of classes that depend on nothing but their modules
MAX_READINGS = 64  # of a module

# For each module: its state, and the results of `read_once` by shape of the map and dtype of autocast
_readings: WeakKeyDictionary[nn.Module, tuple[list[Any], dict[Any, Any]]] = WeakKeyDictionary()


def read_once(read: Callable[[Any, Tensor], Read], module: nn.Module, x: Tensor) -> Read:
    """Return `read(module, x)`, which is called again once the module or the shape of `x` has changed.

    In a graph, with gradients and for a class of a user, which may depend on more than that, every call reads.

    Args:
        read: depends on the module, the shape of `x` and autocast alone. The result may refer to the module's tensors,
            but not to modules: it would keep the module alive.
    """
    if is_recorded():
        return read(module, x)
    if torch.is_grad_enabled():
        forget_readings(module)  # frees replaced tensors
        return read(module, x)
    state, (known, results) = list_state(module), _readings.get(module, ((), {}))
    if len(known) != len(state) or not all(map(is_, known, state)):
        results = {}
        if _is_listed(module):
            _readings[module] = state, results
    key = x.shape, torch.is_autocast_enabled('cpu') and torch.get_autocast_dtype('cpu')
    result: Optional[Read] = results.get(key)
    if result is None:
        if len(results) >= MAX_READINGS:
            results.clear()
        results[key] = result = read(module, x)
    return result


def list_state(layer: nn.Module) -> list[Any]:
    """Return what a user can change on a layer and on the modules inside, for a comparison by `is`.

    A module has a class with methods, a mode, attributes, tensors, modules and hooks. The order of names is part of it.
    """
    state: list[Any] = []
    modules, seen, kinds, count = [layer], {layer}, dict[Any, bool](), len(OF_ALL_MODULES)
    for module in modules:  # the list grows in the loop
        kind, attributes = type(module), module.__dict__
        kinds[kind] = True
        state += kind, attributes.get('training')
        if len(attributes) > count:
            state += [*attributes][count:]
            state += [*attributes.values()][count:]
        for named in map(attributes.get, NAMED):
            if named:
                state += named
                state += named.values()
        children = attributes.get('_modules')
        if children:
            inside = [child for child in children.values() if child is not None and child not in seen]
            seen.update(inside)
            modules += inside
    for kind in kinds:
        state += kind.forward, kind.__call__, kind._call_impl
        for base in own_bases_of(kind):
            state += vars(base).values()
    return state


def _is_listed(layer: nn.Module) -> bool:
    """Return whether `list_state` shows every change of a layer: no attribute changes in place, or is skipped."""
    if type(layer).__module__.partition('.')[0] not in OWNERS:
        return False
    count = len(OF_ALL_MODULES)
    for module in layer.modules():
        names, values = [*module.__dict__], [*module.__dict__.values()]
        if names[:count] != OF_ALL_MODULES or not all(isinstance(value, IMMUTABLE) for value in values[count:]):
            return False
    return True


def forget_readings(module: nn.Module) -> None:
    """Free what `read_once` keeps of a module."""
    if not is_recorded():
        _readings.pop(module, None)


def read_modules(layer: nn.Module, kinds: Mapping[str, type[nn.Module]]) -> Union[Modules, str]:
    """Return the modules inside a layer by name, level by level; or a sentence that names a changed module.

    Types must match exactly, because a subclass may compute a different result. `_modules` takes a fifth of the time of
    `named_modules`.

    Args:
        kinds: types by name. A module without an entry must be an `nn.Identity`.
    """
    modules, parents = {}, [('', layer)]
    for prefix, parent in parents:  # the list grows in the loop
        for name, module in parent._modules.items():
            if module is None:
                continue
            name = prefix + name
            if type(module) is not kinds.get(name, nn.Identity) or is_changed(module):
                return f'{name} of {type(layer).__name__} is not as it was built.'
            modules[name] = module
            if module._modules:
                parents.append((f'{name}.', module))
    if not modules.keys() >= kinds.keys():
        return f'{type(layer).__name__} lacks a module that it was built with.'
    return modules


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module has forward or backward hooks, or a `forward` on the instance."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or 'forward' in module.__dict__


def is_changed(module: nn.Module) -> bool:
    """Return whether a call runs other code than the class had at import, also after `module.compile()`."""
    kind: Any = type(module)
    is_compiled = module._compiled_call_impl is not None
    return is_hooked(module) or is_compiled or hides_methods(module, kind) or is_patched(kind)


CALLS = '__call__', '_call_impl'
_kept_methods: dict[Any, dict[str, Any]] = {}  # by class, by name


def keep_methods(kinds: Iterable[Any]) -> None:
    """Keep the methods of classes that a call may run, for `is_patched`: of a class of others the forward."""
    for kind in kinds:
        if kind not in _kept_methods:
            names = methods_of(kind) if kind.__module__.startswith(OWNERS[0]) else {'forward'}
            _kept_methods[kind] = {name: getattr(kind, name) for name in names.difference(CALLS)}


@constant_when_compiled
def is_patched(kind: Any) -> bool:
    """Return whether a call of a class runs another method than at `keep_methods`.

    Tracers of torch patch the calls of all modules, which are no change of the class.
    """
    if kind.__call__ is not nn.Module.__call__ or kind._call_impl is not nn.Module._call_impl:
        return True
    return any(getattr(kind, name, None) is not method for name, method in _kept_methods.get(kind, {}).items())


def hides_methods(module: nn.Module, kind: Any) -> bool:
    """Return whether an attribute of a module hides a method of the class that a call may run."""
    if torch.compiler.is_dynamo_compiling():  # traces neither `isdisjoint` nor a cache; `getattr` is a guard
        return any(getattr(module, name) is None or name in module.__dict__ for name in _methods_when_compiled(kind))
    return not module.__dict__.keys().isdisjoint(methods_of(kind))


@constant_when_compiled
def _methods_when_compiled(kind: Any) -> tuple[str, ...]:
    return tuple(sorted(methods_of(kind)))


@lru_cache(maxsize=256)
def own_bases_of(kind: Any) -> tuple[type, ...]:
    """Return the classes of this package among a class and its bases."""
    return tuple(base for base in kind.__mro__ if base.__module__.partition('.')[0] == OWNERS[0])


@lru_cache(maxsize=256)
def methods_of(kind: Any) -> frozenset[str]:
    """Return the names of the methods of a class that a call may run. An instance's attribute of the name hides one."""
    bases = kind.__mro__[: kind.__mro__.index(nn.Module)]
    names = {name for base in bases for name, value in vars(base).items() if callable(value)}
    return frozenset({'_call_impl', 'forward', *(name for name in names if not name.startswith('__'))})
