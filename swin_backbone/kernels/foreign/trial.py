"""Compare a layer of another package with the compiled library, on random weights and a random map."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from ...compat import preserve_torch_rng
from ...modes import without_autocast
from ...replace import Unsupported
from ..changes import read_modules
from ..native.availability import find_reason_against
from ..native.memory import require_address
from .calls import CallArgs, list_argument_names
from .foreign_layers import RECORD_ATTRIBUTE, LayerRecord, list_rates, run_embedding, try_native
from .origins import find_masked_places, read_windows

# Allowed differences from the original, by rounding, relative to the largest number.
OUTPUT_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-4


def try_layer(module: nn.Module, record: LayerRecord) -> tuple[float, Optional[str]]:
    """Return the largest difference of outputs and gradients, and why the library cannot be used; None: it can."""
    try:
        with preserve_torch_rng(), torch.inference_mode(False), without_autocast('cpu'), torch.device('cpu'):
            return _compare(copy.deepcopy(module), record), None
    except Unsupported as error:
        return 0.0, str(error)
    except Exception as error:  # code of another package may raise any error
        return 0.0, f'The trial fails: {type(error).__name__}: {error}'


def _compare(module: Any, record: LayerRecord) -> float:
    """Compute a layer by torch and by the library: return the largest difference of outputs and gradients.

    Raises `Unsupported` if the library cannot be used. `module` is a copy, and changes.
    """
    parameters = [*module.parameters()]
    # Any dtype: `require_address` below names the parameter.
    reason = find_reason_against(parameters[0], [parameters[0].dtype])
    if reason is not None:
        raise Unsupported(reason)
    modules = read_modules(module, record.types)
    for parameter in parameters:
        require_address('parameter', parameter, allows_gaps=True)
    generator = torch.Generator().manual_seed(0)
    module.train()
    for owner, name in list_rates(modules, record):
        setattr(owner, name, 0.0)
    for parameter in module.parameters():
        std = parameter.shape[1:].numel() ** -0.5 if parameter.dim() > 1 else 0.5
        parameter.data.copy_(_draw(parameter.shape, generator) * std)
        parameter.requires_grad_(True)
    arguments = _make_example(module, record, generator)
    original, gradients = _forward_and_backward(module, module.forward, *arguments)
    module.__dict__[RECORD_ATTRIBUTE] = record
    if try_native(module, *arguments) is None:
        raise Unsupported('The compiled library has no computation for these sizes or settings.')
    ours, our_gradients = _forward_and_backward(module, partial(try_native, module), *arguments)
    (outputs, structure), (our_outputs, our_structure) = tree_flatten(original), tree_flatten(ours)
    is_tensor = [isinstance(tensor, Tensor) for tensor in outputs]
    if structure != our_structure or is_tensor != [isinstance(tensor, Tensor) for tensor in our_outputs]:
        raise Unsupported(f'The output is {our_structure}, and the original returns {structure}.')
    # Divide differences by the largest number of their tensor, for gradients by no less than a tenth of the largest
    # gradient: the true gradient of a key's bias is 0.
    least = max(float(gradient.abs().max()) for gradient in gradients) / 10
    difference = max(_find_error(a, b) for a, b, is_compared in zip(our_outputs, outputs, is_tensor) if is_compared)
    gradient_difference = max(_find_error(a, b, least) for a, b in zip(our_gradients, gradients))
    is_equal = difference <= OUTPUT_TOLERANCE and gradient_difference <= GRADIENT_TOLERANCE
    largest = max(difference, gradient_difference)
    if not is_equal:
        raise Unsupported(f'The results differ by {largest:.1e}.')
    return largest


def _make_example(module: Any, record: LayerRecord, generator: torch.Generator) -> list[Any]:
    """Return random arguments for a copy of a layer."""
    names = list_argument_names(module)
    if record.run is run_embedding:
        height, width = module.projection.kernel_size
        return [_draw((2, record.channels, 5 * height + 1, 7 * width + 1), generator)]
    is_map = names == ['x'] and (not hasattr(module, 'input_resolution') or hasattr(module, 'drop_path1'))  # of timm
    Wh, Ww = read_windows(module, {}, (1, 1)).window_size if record.origin else (4, 4)
    size = 2 * Wh + 1, Ww + max(1, Ww // 2)
    if hasattr(module, 'set_input_size'):
        module.set_input_size(size, (Wh, Ww))
    if names == ['x']:
        size = getattr(module, 'input_resolution', size)
    call_args: CallArgs = {'H': size[0], 'W': size[1], 'hw_shape': size, 'input_size': size, 'input_dimensions': size}
    if 'mask_matrix' in names:
        module.H, module.W = size
        windows = read_windows(module, {}, size)
        is_shifted = any(windows.shift)
        call_args['mask_matrix'] = torch.where(find_masked_places(windows), -100.0, 0.0) if is_shifted else None
    shape = size if is_map else (math.prod(size),)
    return [_draw((2, *shape, record.channels), generator), *(call_args[name] for name in names[1:])]


def _draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return random numbers of float32, also under another default dtype."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def _find_error(ours: Tensor, original: Tensor, least: float = 0.0) -> float:
    """Return the largest difference, divided by the original's largest number, or by `least` if this is more."""
    return float((ours - original).abs().max()) / max(float(original.abs().max()), least)


def _forward_and_backward(
    module: nn.Module, forward: Callable[..., Any], x: Tensor, *others: Any
) -> tuple[Any, list[Tensor]]:
    """Return the output of `forward`, and the gradients of input and parameters."""
    torch.manual_seed(0)  # of drop path: `try_layer` preserves the generator
    x = x.clone().requires_grad_(True)
    module.zero_grad()
    with torch.enable_grad():
        output = forward(x, *others)
        y = next(tensor for tensor in tree_leaves(output) if isinstance(tensor, Tensor))
        (y * torch.linspace(-1, 1, y.numel()).sin().view(y.shape)).sum().backward()
    return output, [
        torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in (x, *module.parameters())
    ]
