"""Relative errors of results."""

import torch


def relative_error(found, expected):
    """Return the root mean square of the differences, divided by the root mean square of `expected`."""
    found, expected = (torch.cat([x.detach().double().flatten() for x in tensors]) for tensors in (found, expected))
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())
