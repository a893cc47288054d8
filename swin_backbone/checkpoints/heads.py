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
from .formats import Rows, fuse, rename

HEAD = 'HEAD'  # stands for `panoptic_head` in mmdet, `decode_head` in mmseg
LEFT_OUT = re.compile(r'criterion\.|.*\.fed_loss_weight$')  # weights of the classes in a loss; a config has them


class Heads(NamedTuple):
    """Names of an origin around the backbone."""

    origin: str
    anchor: str  # regular expression of a name in every checkpoint
    rows: Rows


_PIXELS = f'{HEAD}.pixel_decoder'
_ENCODER = _PIXELS + '.encoder.layers.{s}'
_DECODER = f'{HEAD}.transformer_decoder.layers.{{s}}'
_D2_PIXELS, _D2_QUERIES = 'sem_seg_head.pixel_decoder', 'sem_seg_head.predictor'
_D2_ENCODER = _D2_PIXELS + '.transformer.encoder.layers.{s}'
_HF_PIXELS, _HF_QUERIES = 'model.pixel_level_module.decoder', 'model.transformer_module'
_HF_ENCODER, _HF_DECODER = _HF_PIXELS + '.encoder.layers.{s}', _HF_QUERIES + '.decoder.layers.{s}'

ORIGINS = (
    Heads(
        'Mask2Former of detectron2',
        r'sem_seg_head\.predictor\.transformer_cross_attention_layers\.0\.norm\.weight',
        (
            (_PIXELS + '.input_convs.{s}.conv', _D2_PIXELS + '.input_proj.{s}.0'),
            (_PIXELS + '.input_convs.{s}.gn', _D2_PIXELS + '.input_proj.{s}.1'),
            (_PIXELS + '.level_encoding.weight', _D2_PIXELS + '.transformer.level_embed'),
            (_ENCODER + '.norms.0', _D2_ENCODER + '.norm1'),
            (_ENCODER + '.norms.1', _D2_ENCODER + '.norm2'),
            (_ENCODER + '.ffn.layers.0.0', _D2_ENCODER + '.linear1'),
            (_ENCODER + '.ffn.layers.1', _D2_ENCODER + '.linear2'),
            (_ENCODER + '.self_attn', _D2_ENCODER + '.self_attn'),
            (_PIXELS + '.lateral_convs.{s}.gn', _D2_PIXELS + '.adapter_{s+1}.norm'),
            (_PIXELS + '.lateral_convs.{s}.conv', _D2_PIXELS + '.adapter_{s+1}'),
            (_PIXELS + '.output_convs.{s}.gn', _D2_PIXELS + '.layer_{s+1}.norm'),
            (_PIXELS + '.output_convs.{s}.conv', _D2_PIXELS + '.layer_{s+1}'),
            (_PIXELS + '.mask_feature', _D2_PIXELS + '.mask_features'),
            (_DECODER + '.norms.0', _D2_QUERIES + '.transformer_cross_attention_layers.{s}.norm'),
            (_DECODER + '.cross_attn.attn', _D2_QUERIES + '.transformer_cross_attention_layers.{s}.multihead_attn'),
            (_DECODER + '.norms.1', _D2_QUERIES + '.transformer_self_attention_layers.{s}.norm'),
            (_DECODER + '.self_attn.attn', _D2_QUERIES + '.transformer_self_attention_layers.{s}.self_attn'),
            (_DECODER + '.norms.2', _D2_QUERIES + '.transformer_ffn_layers.{s}.norm'),
            (_DECODER + '.ffn.layers.0.0', _D2_QUERIES + '.transformer_ffn_layers.{s}.linear1'),
            (_DECODER + '.ffn.layers.1', _D2_QUERIES + '.transformer_ffn_layers.{s}.linear2'),
            (f'{HEAD}.transformer_decoder.post_norm', _D2_QUERIES + '.decoder_norm'),
            (f'{HEAD}.query_feat', _D2_QUERIES + '.query_feat'),
            (f'{HEAD}.query_feat', _D2_QUERIES + '.static_query'),  # name in the first releases
            (f'{HEAD}.query_embed', _D2_QUERIES + '.query_embed'),
            (f'{HEAD}.level_embed', _D2_QUERIES + '.level_embed'),
            (f'{HEAD}.cls_embed', _D2_QUERIES + '.class_embed'),
            (f'{HEAD}.mask_embed.{{2s}}', _D2_QUERIES + '.mask_embed.layers.{s}'),
        ),
    ),
    Heads(
        'Mask2Former of transformers',
        r'model\.transformer_module\.queries_features\.weight',
        (
            (_PIXELS + '.input_convs.{s}.conv', _HF_PIXELS + '.input_projections.{s}.0'),
            (_PIXELS + '.input_convs.{s}.gn', _HF_PIXELS + '.input_projections.{s}.1'),
            (_PIXELS + '.level_encoding.weight', _HF_PIXELS + '.level_embed'),
            (_ENCODER + '.norms.0', _HF_ENCODER + '.self_attn_layer_norm'),
            (_ENCODER + '.norms.1', _HF_ENCODER + '.final_layer_norm'),
            (_ENCODER + '.ffn.layers.0.0', _HF_ENCODER + '.fc1'),
            (_ENCODER + '.ffn.layers.1', _HF_ENCODER + '.fc2'),
            (_ENCODER + '.self_attn', _HF_ENCODER + '.self_attn'),
            (_PIXELS + '.lateral_convs.{s}.conv', _HF_PIXELS + '.adapter_{s+1}.0'),
            (_PIXELS + '.lateral_convs.{s}.gn', _HF_PIXELS + '.adapter_{s+1}.1'),
            (_PIXELS + '.output_convs.{s}.conv', _HF_PIXELS + '.layer_{s+1}.0'),
            (_PIXELS + '.output_convs.{s}.gn', _HF_PIXELS + '.layer_{s+1}.1'),
            (_PIXELS + '.mask_feature', _HF_PIXELS + '.mask_projection'),
            (_DECODER + '.norms.0', _HF_DECODER + '.cross_attn_layer_norm'),
            (_DECODER + '.cross_attn.attn', _HF_DECODER + '.cross_attn'),
            (_DECODER + '.norms.1', _HF_DECODER + '.self_attn_layer_norm'),
            (_DECODER + '.self_attn.attn', _HF_DECODER + '.self_attn'),
            (_DECODER + '.norms.2', _HF_DECODER + '.final_layer_norm'),
            (_DECODER + '.ffn.layers.0.0', _HF_DECODER + '.fc1'),
            (_DECODER + '.ffn.layers.1', _HF_DECODER + '.fc2'),
            (f'{HEAD}.transformer_decoder.post_norm', _HF_QUERIES + '.decoder.layernorm'),
            (f'{HEAD}.query_feat', _HF_QUERIES + '.queries_features'),
            (f'{HEAD}.query_embed', _HF_QUERIES + '.queries_embedder'),
            (f'{HEAD}.level_embed', _HF_QUERIES + '.level_embed'),
            (f'{HEAD}.cls_embed', 'class_predictor'),
            (f'{HEAD}.mask_embed.{{2s}}', _HF_QUERIES + '.decoder.mask_predictor.mask_embedder.{s}.0'),
        ),
    ),
    Heads(
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
    Heads(
        'Co-DETR',
        r'query_head\.label_embedding\.weight',
        (
            ('query_head.dn_generator.label_embedding', 'query_head.label_embedding'),
            *((part, part) for part in ('neck', 'query_head', 'rpn_head', 'roi_head', 'bbox_head')),
        ),
    ),
)


def find_heads(tensors: dict[str, Tensor]) -> Optional[Heads]:
    """Return the origin of necks and heads; None for heads of mmdet and mmseg, and for unknown heads."""
    return next((heads for heads in ORIGINS if any(re.fullmatch(heads.anchor, key) for key in tensors)), None)


def heads_to_here(tensors: dict[str, Tensor], heads: Heads, head: str) -> dict[str, Tensor]:
    """Return necks and heads under their names here.

    Args:
        tensors: tensors outside the backbone, without those of `LEFT_OUT`.
        head: name of a Mask2Former's head: 'panoptic_head' in mmdet, 'decode_head' in mmseg.

    Raises:
        CheckpointError: if a tensor has no name here.
    """
    renamed = {}
    for key, value in fuse(tensors, ('q_proj', 'k_proj', 'v_proj'), 'in_proj_').items():  # as `nn.MultiheadAttention`
        here = rename(key, heads.rows, source=1)
        if here is None:
            raise CheckpointError(f'{key} is no weight that a {heads.origin} has')
        renamed[here.replace(HEAD, head)] = value
    return renamed
