"""Names of necks and heads of transformers, detectron2 and Co-DETR, translated to those of mmdet and mmseg.

Each origin has a table of rows (name here, name there), as in formats.py. Values are equal: all have the same orders of
levels, points, heads and classes, with 'no object' last. Sources:

- facebookresearch/Mask2Former at 9b0651c: `MSDeformAttnPixelDecoder`, `MultiScaleMaskedTransformerDecoder`
- Sense-X/Co-DETR at 2665352: `CoDINOHead`; projects/CO-DETR of mmdetection 3.3, which is made of it
- transformers 5.23: `Mask2FormerForUniversalSegmentation`, `UperNetForSemanticSegmentation`
- mmdet 3.3, `Mask2FormerHead`; mmseg 1.2, `UPerHead`, `FCNHead`

mmdet 2 and mmseg 0.x have the names of mmdet 3 and mmseg 1; the background is the last class since mmdet 2.0.
"""

import re
from typing import NamedTuple, Optional

from torch import Tensor

from .errors import CheckpointError
from .formats import THERE, Rows, fuse, rename

HEAD = 'HEAD'  # stands for `panoptic_head` in mmdet, `decode_head` in mmseg
LEFT_OUT = re.compile(r'criterion\.|.*\.fed_loss_weight$')  # weights of the classes in a loss; a config has them


class HeadFormat(NamedTuple):
    """The names of an origin's necks and heads."""

    title: str
    marker: str  # regular expression of a name in every checkpoint
    rows: Rows


# Mask2Former: a prefix here, in detectron2 and in transformers, and the names behind the prefixes.
_D2_PIXELS, _D2_QUERIES = 'sem_seg_head.pixel_decoder', 'sem_seg_head.predictor'
_HF_PIXELS, _HF_QUERIES = 'model.pixel_level_module.decoder', 'model.transformer_module'
_MASK2FORMER = {
    (f'{HEAD}.pixel_decoder.', f'{_D2_PIXELS}.', f'{_HF_PIXELS}.'): (
        ('input_convs.{s}.conv', 'input_proj.{s}.0', 'input_projections.{s}.0'),
        ('input_convs.{s}.gn', 'input_proj.{s}.1', 'input_projections.{s}.1'),
        ('level_encoding.weight', 'transformer.level_embed', 'level_embed'),
        ('lateral_convs.{s}.gn', 'adapter_{s+1}.norm', 'adapter_{s+1}.1'),
        ('lateral_convs.{s}.conv', 'adapter_{s+1}', 'adapter_{s+1}.0'),
        ('output_convs.{s}.gn', 'layer_{s+1}.norm', 'layer_{s+1}.1'),
        ('output_convs.{s}.conv', 'layer_{s+1}', 'layer_{s+1}.0'),
        ('mask_feature', 'mask_features', 'mask_projection'),
    ),
    (
        f'{HEAD}.pixel_decoder.encoder.layers.{{s}}.',
        f'{_D2_PIXELS}.transformer.encoder.layers.{{s}}.',
        f'{_HF_PIXELS}.encoder.layers.{{s}}.',
    ): (
        ('norms.0', 'norm1', 'self_attn_layer_norm'),
        ('norms.1', 'norm2', 'final_layer_norm'),
        ('ffn.layers.0.0', 'linear1', 'fc1'),
        ('ffn.layers.1', 'linear2', 'fc2'),
        ('self_attn', 'self_attn', 'self_attn'),
    ),
    (
        f'{HEAD}.transformer_decoder.layers.{{s}}.',
        f'{_D2_QUERIES}.transformer_',
        f'{_HF_QUERIES}.decoder.layers.{{s}}.',
    ): (
        ('norms.0', 'cross_attention_layers.{s}.norm', 'cross_attn_layer_norm'),
        ('cross_attn.attn', 'cross_attention_layers.{s}.multihead_attn', 'cross_attn'),
        ('norms.1', 'self_attention_layers.{s}.norm', 'self_attn_layer_norm'),
        ('self_attn.attn', 'self_attention_layers.{s}.self_attn', 'self_attn'),
        ('norms.2', 'ffn_layers.{s}.norm', 'final_layer_norm'),
        ('ffn.layers.0.0', 'ffn_layers.{s}.linear1', 'fc1'),
        ('ffn.layers.1', 'ffn_layers.{s}.linear2', 'fc2'),
    ),
    (f'{HEAD}.', f'{_D2_QUERIES}.', f'{_HF_QUERIES}.'): (
        ('transformer_decoder.post_norm', 'decoder_norm', 'decoder.layernorm'),
        ('query_feat', 'query_feat', 'queries_features'),
        ('query_feat', 'static_query', 'queries_features'),  # name in detectron2's first releases
        ('query_embed', 'query_embed', 'queries_embedder'),
        ('level_embed', 'level_embed', 'level_embed'),
        ('mask_embed.{2s}', 'mask_embed.layers.{s}', 'decoder.mask_predictor.mask_embedder.{s}.0'),
    ),
    (f'{HEAD}.', f'{_D2_QUERIES}.', ''): (('cls_embed', 'class_embed', 'class_predictor'),),
}


def _make_mask2former_rows(column: int) -> Rows:
    parts = [(prefixes[0], prefixes[column], rows) for prefixes, rows in _MASK2FORMER.items()]
    return tuple((prefix + row[0], their_prefix + row[column]) for prefix, their_prefix, rows in parts for row in rows)


HEAD_FORMATS = (
    HeadFormat(
        'Mask2Former of detectron2',
        r'sem_seg_head\.predictor\.transformer_cross_attention_layers\.0\.norm\.weight',
        _make_mask2former_rows(1),
    ),
    HeadFormat(
        'Mask2Former of transformers',
        r'model\.transformer_module\.queries_features\.weight',
        _make_mask2former_rows(2),
    ),
    HeadFormat(
        'UperNet of transformers',
        r'decode_head\.classifier\.weight',
        (
            ('decode_head.conv_seg', 'decode_head.classifier'),
            ('auxiliary_head.conv_seg', 'auxiliary_head.classifier'),
            ('decode_head.psp_modules.{s}.1.bn', 'decode_head.psp_modules.{s}.1.batch_norm'),
            ('decode_head.lateral_convs.{s}.bn', 'decode_head.lateral_convs.{s}.batch_norm'),
            ('decode_head.fpn_convs.{s}.bn', 'decode_head.fpn_convs.{s}.batch_norm'),
            ('decode_head.bottleneck.bn', 'decode_head.bottleneck.batch_norm'),
            ('decode_head.fpn_bottleneck.bn', 'decode_head.fpn_bottleneck.batch_norm'),
            ('auxiliary_head.convs.{s}.bn', 'auxiliary_head.convs.{s}.batch_norm'),
            ('auxiliary_head.conv_cat.bn', 'auxiliary_head.conv_cat.batch_norm'),
            ('decode_head', 'decode_head'),
            ('auxiliary_head', 'auxiliary_head'),
        ),
    ),
    HeadFormat(
        'Co-DETR',
        r'query_head\.label_embedding\.weight',
        (
            ('query_head.dn_generator.label_embedding', 'query_head.label_embedding'),
            *((part, part) for part in ('neck', 'query_head', 'rpn_head', 'roi_head', 'bbox_head')),
        ),
    ),
)


def find_head_format(tensors: dict[str, Tensor]) -> Optional[HeadFormat]:
    """Return the format of necks and heads; None for heads of mmdet and mmseg, and for unknown heads."""
    return next((format for format in HEAD_FORMATS if any(re.fullmatch(format.marker, key) for key in tensors)), None)


def rename_heads(tensors: dict[str, Tensor], format: HeadFormat, head_name: str) -> dict[str, Tensor]:
    """Return necks and heads under their names here.

    Args:
        tensors: tensors outside the backbone, without those of `LEFT_OUT`.
        head_name: of a Mask2Former's head: 'panoptic_head' in mmdet, 'decode_head' in mmseg.

    Raises:
        CheckpointError: if a tensor has no name here.
    """
    renamed = {}
    for key, value in fuse(tensors, ('q_proj', 'k_proj', 'v_proj'), 'in_proj_').items():  # as `nn.MultiheadAttention`
        name = rename(key, format.rows, source=THERE)
        if name is None:
            raise CheckpointError(f'{key} is no weight that a {format.title} has')
        renamed[name.replace(HEAD, head_name)] = value
    return renamed
