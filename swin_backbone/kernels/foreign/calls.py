"""Calls of layers of other packages: the arguments by name, the map among them, and the modules inside a layer.

Layout: B batch, H W height and width of a map, C channels.
"""

import inspect
from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ...compat import constant_when_compiled
from ...replace import Unsupported

CallArgs = dict[str, Any]  # arguments of a call, by name
OPTIONAL_ARGUMENTS = {'output_attentions', 'head_mask', 'always_partition'}  # of some blocks of transformers


def list_argument_names(module: Any) -> list[str]:
    """Return the names of the arguments of `forward`, without OPTIONAL_ARGUMENTS. A scripted module has none."""
    if isinstance(module, torch.jit.ScriptModule):
        return []
    return [name for name in _find_parameters(type(module).forward)[0] if name not in OPTIONAL_ARGUMENTS]


def list_modules(layer: nn.Module) -> dict[str, Any]:
    """Return the modules inside a layer, by name."""
    return {name: module for name, module in layer.named_modules(remove_duplicate=False) if name}


def bind_arguments(module: nn.Module, args: Any, kwargs: Any) -> Optional[CallArgs]:
    """Return the arguments of a call by name, with defaults and with those of `**kwargs`; None: the call is wrong."""
    names, defaults, required, takes_any_name = _find_parameters(type(module).forward)
    positional = dict(zip(names, args))
    call_args: CallArgs = {**positional, **kwargs}
    is_wrong_name = any(name in positional or not (takes_any_name or name in names) for name in kwargs)
    if len(args) > len(names) or is_wrong_name or any(name not in call_args for name in required):
        return None
    return {**{name: call_args.get(name, default) for name, default in zip(names, defaults)}, **call_args}


@constant_when_compiled
def _find_parameters(forward: Any) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[str, ...], bool]:
    """Return names and defaults of the arguments of a forward, those without a default, and if it has `**kwargs`."""
    return _read_parameters(forward)


@lru_cache(maxsize=256)
def _read_parameters(forward: Any) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[str, ...], bool]:
    _, *parameters = inspect.signature(forward).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    required = tuple(parameter.name for parameter in named if parameter.default is parameter.empty)
    defaults = tuple(None if parameter.name in required else parameter.default for parameter in named)
    return tuple(parameter.name for parameter in named), defaults, required, len(named) < len(parameters)


def find_map(module: Any, call_args: CallArgs) -> Tensor:
    """Return the first argument as a map (B, H, W, C). Raises `Unsupported` if the size is unknown or wrong."""
    x: Tensor = next(iter(call_args.values()))
    if x.dim() == 4:
        return x
    size = next((call_args[name] for name in ('hw_shape', 'input_size', 'input_dimensions') if name in call_args), None)
    owner = call_args if 'H' in call_args else vars(module)
    H, W = size or getattr(module, 'input_resolution', None) or (owner.get('H'), owner.get('W'))
    if x.dim() != 3 or H is None or W is None or x.shape[1] != int(H) * int(W):
        raise Unsupported('The height and width of the map are unknown or wrong.')
    return x.reshape(len(x), int(H), int(W), x.shape[-1])
