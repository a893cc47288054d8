"""The names that published Swin V2 checkpoints give their weights, as formats.py has those of V1.

Names here are mmpretrain's `SwinTransformerV2`'s: a stage begins with the patch merging that leads to it.
"""

from .formats import BLOCK, HF_BLOCK, LAYERS, STAGES, V2, Format

_LAYERS_ANCHOR = r'layers[._]0\.blocks\.0\.attn\.logit_scale'
_STAGES_ANCHOR = r'stages\.0\.blocks\.0\.attn\.w_msa\.logit_scale'
_HF_BLOCK = HF_BLOCK.replace('swin.', 'swinv2.')

OWN_V2 = Format(  # whose names are the toolboxes', had they a Swin V2
    'mmdet',
    'SwinV2Backbone',
    _STAGES_ANCHOR,
    (*STAGES, ('norm{s}', 'norm{s}'), ('norm', 'norm'), ('head', 'head')),
    merging='channels',
    family=V2,
)
MMPRETRAIN_V2 = Format(
    'mmpretrain',
    'mmpretrain, Swin V2',
    _STAGES_ANCHOR,
    (*STAGES, ('norm', 'norm3'), ('norm', 'norm'), ('head', 'head.fc')),
    merging='channels',
    family=V2,
)
OFFICIAL_V2 = Format(
    'official',
    'microsoft/Swin-Transformer, Swin V2',
    _LAYERS_ANCHOR,
    (*LAYERS, ('stages.{s+1}.downsample', 'layers.{s}.downsample'), ('head', 'head')),
    family=V2,
)
TIMM_V2 = Format(
    'timm',
    'timm, Swin V2',
    _LAYERS_ANCHOR,
    (*LAYERS, ('stages.{s}.downsample', 'layers.{s}.downsample'), ('head', 'head.fc')),
    spellings=((r'^layers_(?=\d)', 'layers.'),),  # features_only=True
    family=V2,
)
HUGGING_FACE_V2 = Format(
    'hf',
    'Hugging Face, Swin V2',
    r'(?:swinv2\.)?encoder\.layers\.0\.blocks\.0\.attention\.self\.logit_scale',
    (
        ('patch_embed.projection', 'swinv2.embeddings.patch_embeddings.projection'),
        ('patch_embed.norm', 'swinv2.embeddings.norm'),
        ('absolute_pos_embed', 'swinv2.embeddings.position_embeddings'),
        (f'{BLOCK}.norm1', f'{_HF_BLOCK}.layernorm_before'),
        (f'{BLOCK}.attn.w_msa.q_bias', f'{_HF_BLOCK}.attention.self.query.bias'),
        (f'{BLOCK}.attn.w_msa.v_bias', f'{_HF_BLOCK}.attention.self.value.bias'),
        (f'{BLOCK}.attn.w_msa.cpb_mlp', f'{_HF_BLOCK}.attention.self.continuous_position_bias_mlp'),
        (f'{BLOCK}.attn.w_msa.proj', f'{_HF_BLOCK}.attention.output.dense'),
        (f'{BLOCK}.attn.w_msa', f'{_HF_BLOCK}.attention.self'),
        (f'{BLOCK}.norm2', f'{_HF_BLOCK}.layernorm_after'),
        (f'{BLOCK}.norm3', f'{_HF_BLOCK}.norm3'),  # which Hugging Face's own models have not
        (f'{BLOCK}.ffn.layers.0.0', f'{_HF_BLOCK}.intermediate.dense'),
        (f'{BLOCK}.ffn.layers.1', f'{_HF_BLOCK}.output.dense'),
        ('stages.{s+1}.downsample', 'swinv2.encoder.layers.{s}.downsample'),
        ('norm{s}', 'norm{s}'),
        ('norm', 'swinv2.layernorm'),
        ('head', 'classifier'),
    ),
    separate_qkv=True,
    spellings=((r'^(?=(embeddings|encoder\.layers|layernorm)\.)', 'swinv2.'),),
    family=V2,
)

WRITTEN_V2 = {format.name: format for format in (OFFICIAL_V2, OWN_V2, TIMM_V2, HUGGING_FACE_V2)}
ALL_V2 = (*WRITTEN_V2.values(), MMPRETRAIN_V2)
