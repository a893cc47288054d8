"""The names that Swin-MLP's checkpoints give their weights, as formats.py has those of V1."""

from .formats import LAYERS, MLP, STAGES, Format

OFFICIAL_MLP = Format(
    'official',
    'microsoft/Swin-Transformer, Swin-MLP',
    r'layers\.0\.blocks\.0\.spatial_mlp\.weight',
    (*LAYERS, ('stages.{s}.downsample', 'layers.{s}.downsample'), ('head', 'head')),
    family=MLP,
)
OWN_MLP = Format(  # whose names are the toolboxes', had they a Swin-MLP
    'mmdet',
    'SwinMLPBackbone',
    r'stages\.0\.blocks\.0\.spatial_mlp\.weight',
    (*STAGES, ('norm{s}', 'norm{s}'), ('norm', 'norm'), ('head', 'head')),
    merging='channels',
    family=MLP,
)

WRITTEN_MLP = {format.name: format for format in (OFFICIAL_MLP, OWN_MLP)}
