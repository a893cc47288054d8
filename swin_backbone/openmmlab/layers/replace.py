"""Which layers of a config's model have a counterpart here."""

from typing import Any

LAYERS = ('SingleRoIExtractor', 'UPerHead')
SCOPES = ('', 'mmdet', 'mmseg')  # a layer that somebody else calls so stays


def replace_layers(node: Any) -> None:
    """Name this package's layers in the place of the toolboxes' own, in a model's config, in place."""
    if isinstance(node, dict):
        name = node.get('type')
        scope, _, layer = name.rpartition('.') if isinstance(name, str) else ('', '', '')
        if layer in LAYERS and scope in SCOPES:
            node['type'] = f'swin_backbone.{layer}'
    if isinstance(node, (dict, list, tuple)):
        for child in node.values() if isinstance(node, dict) else node:
            replace_layers(child)
