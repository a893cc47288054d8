"""The gradients of a function inside the backward of an autograd function, by autograd itself."""

from collections.abc import Callable, Sequence
from typing import Any, Optional, Protocol

import torch
from torch import Tensor

from ...compat import is_batched


class Context(Protocol):
    """What autograd hands to a function's forward and backward; a function may add attributes."""

    saved_tensors: tuple[Any, ...]  # tensors, and None where None was saved
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Optional[Tensor]) -> None:
        """Keep tensors, which backward finds in `saved_tensors`."""


def needs_autograd(grad: Tensor) -> bool:
    """Whether a backward must be computed by operations that autograd sees.

    They have a second derivative (`create_graph=True`), and take a batch of gradients at once, as for a vectorised
    Jacobian. Compiled operators and strips do neither.
    """
    return torch.is_grad_enabled() or is_batched(grad)


def gradients_by_autograd(
    function: Callable[..., Tensor], tensors: Sequence[Optional[Tensor]], needed: Sequence[bool], grad: Tensor
) -> list[Optional[Tensor]]:
    """The gradient of `function(*tensors)` by each tensor, None where it is not needed.

    Args:
        grad: of the function's output.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # A tensor may be computed from another: where two layers share a weight, the input of the second is. As views
        # they are apart, so that the gradient of the weight leaves out what reaches it by way of the input.
        views = [t.view_as(t) if t is not None and n else t for t, n in zip(tensors, needed)]
        y = function(*views)
    inputs = [view for view, n in zip(views, needed) if n]
    found = iter(torch.autograd.grad(y, inputs, grad, create_graph=create_graph))  # type: ignore[arg-type]
    return [next(found) if n else None for n in needed]
