"""All exports share torch's table of ONNX operators."""

import copy
from functools import cache
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True, scope='session')
def _one_table_of_operators():
    """Build the table once. torch builds the table for each export, in half a second."""
    if find_spec('onnxscript') is None:
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    build = cache(ONNXRegistry.from_torchlib)

    def copy_table(_, opset_version):
        table = copy.copy(build(opset_version))
        table.functions = {name: list(choices) for name, choices in table.functions.items()}
        return table

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, 'from_torchlib', copy_table)
        yield
