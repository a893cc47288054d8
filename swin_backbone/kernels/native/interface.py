"""The interface of the library's computations: of Swin layers in `computations.py`, of other layers in `detection/`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Protocol, TypeVar

from torch import Tensor

Weights = Sequence[Optional[Tensor]]
MakeWeights = Callable[..., Weights]  # from a layer's parameters, in torch operations
Prepared = TypeVar('Prepared')  # what a computation prepares for its own methods: structures of csrc/swin.h, addresses


def as_given(*parameters: Optional[Tensor]) -> Weights:
    """Return the parameters: they are the computation's weights."""
    return parameters


class ResultShapes(NamedTuple):
    """The shapes of a computation's results: of the output, and of the gradients of the input and of all weights.

    Attributes:
        saved_bytes: of the second output of the operator of torch.
    """

    output: Sequence[int]
    gradients: Sequence[Sequence[int]]
    saved_bytes: int = 0


class Computation(Protocol[Prepared]):
    """A computation by the library, from an input and weights to an output, with gradients.

    Its fields are a layer's settings and, set by `_replace` for one call, tensors without gradients. `plans.py` runs it
    in autograd.
    """

    def prepare(self, shape: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights) -> Prepared:
        """Check and pack the weights, and return what `forward` and `backward` need for inputs of a shape.

        Args:
            parameters: of the layer.
            make_weights: maps the parameters to the computation's weights.

        Raises:
            Unsupported: if the library does not take the shape or a weight.
        """

    def forward(self, x: Tensor, prepared: Prepared) -> Sequence[Tensor]:
        """Return the output, and at most one tensor more, which `backward` takes as `saved`."""

    def backward(
        self, grad: Tensor, needed: Sequence[bool], x: Tensor, prepared: Prepared, weights: Any, saved: Sequence[Tensor]
    ) -> Weights:
        """Return the gradients for `x` and for the computation's weights.

        Args:
            grad: of the output, contiguous.
            needed: whether the gradients of `x` and of the weights are needed. The caller ignores
                others, so that a computation may compute or skip them.
        """


class SwinComputation(Computation[Prepared], Protocol[Prepared]):
    """A layer of a Swin, as a NamedTuple. `operators.py` makes an operator of torch of it, for graphs."""

    @property
    def operator_name(self) -> str:
        """The name of the operator of torch."""

    def check(self, shape: Sequence[int], *weights: Any) -> None:
        """Raise `Unsupported` if the library does not take the weights, for maps of any size. Nothing reads memory."""

    def infer_shapes(self, shape: Sequence[int], *weights: Any) -> ResultShapes:
        """Return the shapes of results for an input of a shape, which may have symbols of a graph."""

    def list_operator_arguments(self, weights: Weights) -> tuple[Any, ...]:
        """Return the arguments of the operator of torch after the input, in the order of `operators.SCHEMAS`."""
