"""Compare a model before and after acceleration."""

import torch

from swin_backbone.kernels.foreign import accelerate as swap


def results(model, x, maps=list, seed=1):
    """Return the outputs, and the gradients of input and parameters."""
    torch.manual_seed(seed)
    model.zero_grad()
    x = x.clone().requires_grad_(True)
    outputs = [*maps(model(x))]
    sum((one * one.detach().sin()).sum() for one in outputs).backward()
    return [
        *(one.detach() for one in outputs),
        x.grad,
        *(p.grad.clone() for p in model.parameters() if p.grad is not None),
    ]


def assert_close(ours, original):
    assert len(ours) == len(original)
    for a, b in zip(ours, original):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * float(b.abs().max()) + 1e-6)


def accelerated(model):
    return [name for name, one in model.named_modules() if swap.RECORD_ATTRIBUTE in one.__dict__]


def assert_accelerates(model, x, maps, calls, blocks, layers, change=lambda model: None):
    """Accelerate a model in training. Outputs, dtypes, gradients, random numbers and state_dict stay.

    Args:
        maps: function from the model's output to tensors.
        blocks: number of calls of blocks in the library, or a range.
        layers: number of accelerated layers.
        change: function of the model, called before the comparison.
    """
    names = list(model.state_dict())
    lines = swap.accelerate_swin(model)
    assert len(accelerated(model)) == layers, lines
    assert list(model.state_dict()) == names
    change(model)
    calls.clear()
    ours = results(model, x, maps)
    assert len(calls) in (blocks if isinstance(blocks, range) else [blocks])
    swap.restore_swin(model)
    assert not accelerated(model)
    assert_close(ours, results(model, x, maps))
