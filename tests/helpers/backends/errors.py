"""How far results are from what they should be."""

import torch


def relative_error(found, expected):
    """The root of the mean square of the differences of some tensors, by that of the expected ones."""
    found, expected = (torch.cat([x.detach().double().flatten() for x in tensors]) for tensors in (found, expected))
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())
