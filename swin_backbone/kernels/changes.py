"""What a user changed on a module, since the import and since the last call.

A replacement computes modules that are as built (`is_changed`, `read_modules`). What it reads of a module serves later
calls, until the module changes (`read_once`).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import is_
from typing import Any, Optional, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..compat import constant_when_compiled
from ..modes import needs_torch_op
from ..replace import Unsupported

Result = TypeVar('Result')
Modules = dict[str, Any]  # inside a layer, by name
PACKAGES = 'swin_backbone', 'torch'  # a forward of their classes depends on the module and the arguments alone
_original_methods: dict[Any, dict[str, Any]] = {}  # {class: {name: method}}


def remember_methods(classes: Iterable[Any]) -> None:
    """Remember the methods of classes that a call may run, for `is_patched`.

    Of a class outside this package, only `forward` is remembered. `is_patched` compares `_call_impl` itself.
    """
    for cls in classes:
        if cls not in _original_methods:
            names = list_methods(cls) if find_package(cls) == PACKAGES[0] else {'forward'}
            _original_methods[cls] = {name: getattr(cls, name) for name in names - {'_call_impl'}}


def find_package(cls: Any) -> str:
    """Return the name of the package of a class."""
    return cls.__module__.partition('.')[0]


def is_changed(module: nn.Module) -> bool:
    """Return whether a call of a module runs hooks, or other code than the class had at import."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    cls: Any = type(module)
    is_compiled = module._compiled_call_impl is not None  # by `module.compile()`
    return bool(hooks) or is_compiled or shadows_methods(module, cls) or is_patched(cls)


@constant_when_compiled
def is_patched(cls: Any) -> bool:
    """Return whether a call of a class runs another method than at `remember_methods`.

    Tracers of torch patch the calls of all modules; such a patch is no change of the class.
    """
    if cls.__call__ is not nn.Module.__call__ or cls._call_impl is not nn.Module._call_impl:
        return True
    return any(getattr(cls, name, None) is not method for name, method in _original_methods.get(cls, {}).items())


def shadows_methods(module: nn.Module, cls: Any) -> bool:
    """Return whether an instance attribute shadows a method of the class that a call may run."""
    # Dynamo traces neither `isdisjoint` nor `lru_cache`. Each `getattr` adds a guard: a method that is shadowed later
    # recompiles the graph.
    if torch.compiler.is_dynamo_compiling():
        return any(
            getattr(module, name) is None or name in module.__dict__ for name in _list_methods_when_compiled(cls)
        )
    return not module.__dict__.keys().isdisjoint(list_methods(cls))


@constant_when_compiled
def _list_methods_when_compiled(cls: Any) -> tuple[str, ...]:
    return tuple(sorted(list_methods(cls)))


@lru_cache(maxsize=256)
def list_methods(cls: Any) -> frozenset[str]:
    """Return the names of the methods of a class that a call may run. An instance attribute of the name shadows one."""
    bases = cls.__mro__[: cls.__mro__.index(nn.Module)]
    names = {name for base in bases for name, value in vars(base).items() if callable(value)}
    return frozenset({'_call_impl', 'forward', *(name for name in names if not name.startswith('__'))})


def read_modules(layer: nn.Module, types: Mapping[str, type[nn.Module]]) -> Modules:
    """Return the modules inside a layer by name, level by level. Raises `Unsupported`, which names a changed module.

    Types must match exactly, because a subclass may compute a different result. `_modules` takes a fifth of the time of
    `named_modules`.

    Args:
        types: by name. A module without an entry must be an `nn.Identity`.
    """
    modules, parents = {}, [('', layer)]
    for prefix, parent in parents:  # the list grows in the loop
        for name, module in parent._modules.items():
            if module is None:
                continue
            name = prefix + name
            if type(module) is not types.get(name, nn.Identity) or is_changed(module):
                raise Unsupported(f'{name} of {type(layer).__name__} is not as it was built.')
            modules[name] = module
            if module._modules:
                parents.append((f'{name}.', module))
    if not modules.keys() >= types.keys():
        raise Unsupported(f'{type(layer).__name__} lacks a module that it was built with.')
    return modules


MODULE_ATTRIBUTES = frozenset(nn.Module().__dict__)  # that `nn.Module.__init__` sets
HOOKS = '_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks'
DICTS = '_parameters', '_buffers', '_modules', *HOOKS  # attributes of a module that change in place
IMMUTABLE_TYPES = int, float, str, tuple, type(None), torch.dtype, torch.device
MAX_READINGS = 64  # of a module

# For each module: its state, and the results of `read_once` by shape of the map and dtype of autocast
_readings: WeakKeyDictionary[nn.Module, tuple[list[Any], dict[Any, Any]]] = WeakKeyDictionary()


def read_once(read: Callable[[Any, Tensor], Result], module: nn.Module, x: Tensor) -> Result:
    """Return `read(module, x)`, cached until the module, the shape of `x` or autocast changes.

    Nothing is cached in a graph, with gradients, or for a user's class: its forward may depend on other state.

    Args:
        read: depends on the module, the shape of `x` and autocast alone. The result may refer to the module's tensors,
            but not to modules: it would keep the module alive.
    """
    if needs_torch_op():
        return read(module, x)
    if torch.is_grad_enabled():
        forget_readings(module)  # frees replaced tensors
        return read(module, x)
    state = list_state(module)
    old_state, results = _readings.get(module, ((), {}))
    if len(old_state) != len(state) or not all(map(is_, old_state, state)):
        results = {}
        if _has_complete_state(module):  # otherwise nothing is kept
            _readings[module] = state, results
    key = x.shape, torch.is_autocast_enabled('cpu') and torch.get_autocast_dtype('cpu')
    result: Optional[Result] = results.get(key)
    if result is None:
        if len(results) >= MAX_READINGS:
            results.clear()
        results[key] = result = read(module, x)
    return result


def list_state(layer: nn.Module) -> list[Any]:
    """Return what a user can change on a layer and on the modules inside, for a comparison by `is`.

    A module has a class with methods, and attributes. Some attributes are dicts: of tensors, modules and hooks. Names
    of plain attributes are left out, for speed: an attribute that is renamed and keeps its value and place is not
    noticed.
    """
    state: list[Any] = []
    modules, seen, classes = [layer], {layer}, dict[Any, bool]()
    for module in modules:  # the list grows in the loop
        attributes = module.__dict__
        classes[type(module)] = True
        state.append(type(module))
        state += attributes.values()
        for contents in map(attributes.get, DICTS):
            if contents:
                state += contents
                state += contents.values()
        children = attributes.get('_modules')
        if children:
            inside = [child for child in children.values() if child is not None and child not in seen]
            seen.update(inside)
            modules += inside
    for cls in classes:
        state += cls.forward, cls.__call__, cls._call_impl
        for base in list_own_classes(cls):
            state += vars(base).values()
    return state


def _has_complete_state(layer: nn.Module) -> bool:
    """Return whether `list_state` shows every change of a layer: no other attribute changes in place."""
    if find_package(type(layer)) not in PACKAGES:
        return False
    attributes = [item for module in layer.modules() for item in vars(module).items()]
    return all(name in MODULE_ATTRIBUTES or isinstance(value, IMMUTABLE_TYPES) for name, value in attributes)


def forget_readings(module: nn.Module) -> None:
    """Free what `read_once` keeps of a module."""
    if not needs_torch_op():
        _readings.pop(module, None)


@lru_cache(maxsize=256)
def list_own_classes(cls: Any) -> tuple[type, ...]:
    """Return the classes of this package among a class and its bases."""
    return tuple(base for base in cls.__mro__ if find_package(base) == PACKAGES[0])
