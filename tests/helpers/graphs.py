"""The graphs of compiled functions."""

from collections import Counter

import torch


def record_graphs(function, **options):
    """Return the compiled function, which computes eagerly, and a list that gets each of its graph modules."""
    graphs = []

    def record(graph, _):
        graphs.append(graph)
        return graph

    return torch.compile(function, backend=record, **options), graphs


def layers_in(graph):
    """Count the operators of the compiled library in a graph."""
    names = (str(node.target).split('.') for node in graph.nodes if node.op == 'call_function')
    return Counter(name[1] for name in names if name[0] == 'swin_backbone')
