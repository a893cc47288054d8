"""Which layers of a config's model have a counterpart here."""

from typing import Any

LAYERS = ('SingleRoIExtractor', 'UPerHead')


def replace_layers(node: Any) -> None:
    """Name this package's layers in the place of the toolboxes' own, in a model's config, in place."""
    if isinstance(node, dict):
        name = node.get('type')
        if isinstance(name, str) and name.rpartition('.')[2] in LAYERS:
            node['type'] = f'swin_backbone.{name.rpartition(".")[2]}'
    if isinstance(node, (dict, list, tuple)):
        for child in node.values() if isinstance(node, dict) else node:
            replace_layers(child)
