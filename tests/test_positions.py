"""Position biases: the gradient has a fixed order of sums, and coordinates need no float64 of a device."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone.models.windows import make_position_bias
from swin_backbone.positions import log_spaced_coordinates


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names, self.dtypes = set(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.add(func._schema.name)
        self.dtypes.add((out.device.type, out.dtype))
        return out


def test_the_gradient_of_the_table_has_no_atomic_adds():
    table_Rh = torch.randn(169, 3, requires_grad=True)
    with Operators() as operators:
        make_position_bias(table_Rh, (7, 7)).square().sum().backward()
    assert not {name for name in operators.names if 'index' in name or 'scatter' in name}


def test_coordinates_are_never_float64_on_a_device():
    with Operators() as operators:
        log_spaced_coordinates((9, 5), (7, 7), torch.device('meta'), torch.float32)
    assert ('meta', torch.float32) in operators.dtypes
    assert ('meta', torch.float64) not in operators.dtypes
