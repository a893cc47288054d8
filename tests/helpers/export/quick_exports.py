"""A fixture without which torch takes a quarter more time for an export."""

import copy
from functools import cache
from importlib.util import find_spec

import pytest


@pytest.fixture(scope='session')
def quick_exports():
    """Build torch's table of ONNX operators once, and look for patterns of several outputs at their own operators.

    torch builds the table for each export, in half a second. For each node and each such pattern, onnxscript lists all
    nodes of the graph.
    """
    if find_spec('onnxscript') is None:
        yield
        return
    from onnxscript.rewriter import _basics, _matcher
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    build, match = cache(ONNXRegistry.from_torchlib), _matcher.SimplePatternMatcher.match

    def copy_table(_, opset_version):
        table = copy.copy(build(opset_version))
        table.functions = {name: list(choices) for name, choices in table.functions.items()}
        return table

    def match_own_operator(matcher, model, graph, node, **options):
        first, *others = (output.op_identifier() for output in matcher.pattern.output_nodes)
        if others and first not in (None, node.op_identifier()):
            return _basics.MatchResult().fail('another operator')
        return match(matcher, model, graph, node, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, 'from_torchlib', copy_table)
        patch.setattr(_matcher.SimplePatternMatcher, 'match', match_own_operator)
        yield
