"""`--compile` of the tools: torch.compile of the backbone and the neck of a whole model."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Union

from mmengine.logging import print_log
from torch import nn

from ...compat import compile_calls, prepare_compiler


def compile_model(model: nn.Module) -> None:
    """Compile backbone and neck on a GPU, see `compile_parts`. On a CPU nothing changes, and a line reports this."""
    if all(parameter.device.type == 'cpu' for parameter in model.parameters()):
        reason = 'on a CPU a graph calls the compiled library too, and takes no less time'
        print_log(f'--compile has no effect: {reason}', 'current', logging.WARNING)
    else:
        compile_parts(model)


def compile_parts(model: nn.Module, backend: Union[str, Callable[..., Any]] = 'inductor') -> None:
    """Compile backbones and necks, in place, for pictures of any size. The compilation runs in the first forward.

    Names of parameters, classes and checkpoints stay; copies of the model are not compiled. A part that torch cannot
    compile, forward or backward, runs as before, with one warning.

    Args:
        backend: backend of torch.compile.
    """
    prepare_compiler()
    for name, module in model.named_modules():
        if name.rpartition('.')[2] in ('backbone', 'neck'):
            compile_calls(module, partial(_warn, name), dynamic=True, backend=backend)


def _warn(name: str, error: Exception) -> None:
    reason = ' '.join(str(error).splitlines()[:2])
    text = f'--compile has no effect on {name}: torch cannot compile it ({type(error).__name__}: {reason})'
    print_log(text, 'current', logging.WARNING)
