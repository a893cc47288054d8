"""Graphs of DETRs: Deformable DETR, DINO, Grounding DINO and Co-DINO.

The model's own encoder, decoder and head are traced. mmdet stores the sizes of the maps in tensors, whose values an
exporter would fix. So the functions of sizes are replaced.

Layout: B batch, C channels, T tokens of all levels, Q queries, K classes, N objects of an image, L tokens of the text,
H W height and width.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import torch
from mmdet.models.dense_heads import DeformableDETRHead
from mmdet.models.detectors import DINO
from mmdet.models.layers import inverse_sigmoid
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from torch import Tensor, nn

from ..graph import ExportError, make_refusal
from . import boxes
from .dense import copy_with_globals
from .layers import (
    LevelSizes,
    compute_valid_ratios,
    copy_for_graph,
    find_token_centres,
    find_token_places,
    flatten_maps,
    list_level_sizes,
    make_padding_masks,
)
from .operators import NEVER

DETRS = ('DeformableDETR', 'DINO', 'GroundingDINO', 'CoDETR')


class TransformerHead(boxes.Head):
    """Encoder, decoder and head of a detector of `DETRS`: copies, the model stays unchanged.

    Args:
        texts: class names for Grounding DINO.
    """

    def __init__(self, model: Any, texts: Sequence[str] = ()):
        super().__init__()
        name = type(model).__name__
        if name not in DETRS:
            raise make_refusal(f'{name}.forward_transformer', DETRS)
        if model.data_preprocessor.pad_size_divisor != 1:
            raise make_refusal('data_preprocessor.pad_size_divisor above 1, with masks of the padding,')
        if name == 'CoDETR':
            if model.eval_module != 'detr' or type(model.query_head).__name__ != 'CoDINOHead':
                raise make_refusal(
                    f'CoDETR with {type(model.query_head).__name__} and eval_module={model.eval_module!r}',
                    ("CoDINOHead and eval_module='detr'",),
                )
            parts: Any = _CoDINO(model.query_head)
        else:
            parts = copy.copy(model)
            unused = ('backbone', 'neck', 'language_model', 'text_feat_map')
            parts._modules = {key: module for key, module in model._modules.items() if key not in unused}
        self.parts = copy_for_graph(parts)
        self.parts.encoder.get_encoder_reference_points = lambda sizes, ratios, device: find_token_centres(
            sizes, ratios
        )
        self.parts.gen_encoder_output_proposals = self._make_proposals
        cfg = parts.bbox_head.test_cfg
        self.max_objects = cfg.get('max_per_img', parts.num_queries)
        self.is_dino = name != 'DeformableDETR'
        self.nms: Any = None
        self.score_thr: Any = None
        if name == 'CoDETR':
            self.nms = cfg.get('nms')
            self.score_thr = cfg.get('score_thr', 0)
            boxes.require_nms(self.nms or {})
            self.parts.encoder.forward = partial(_encode, self.parts.encoder.forward)
            self.parts.decoder.forward = partial(_decode, self.parts.decoder.forward)
            # The head's own forward counts the images in Python
            forward = copy_with_globals(DeformableDETRHead.forward, inverse_sigmoid=partial(inverse_sigmoid, eps=1e-3))
            self.parts.bbox_head.forward = partial(forward, self.parts.bbox_head)
        self.text: dict[str, Tensor] = {}
        if name == 'GroundingDINO':
            self._read_texts(model, texts)

    def _read_texts(self, model: Any, texts: Sequence[str]) -> None:
        """Compute the features of the text, which are constants of the graph: it has no language model."""
        if model.test_cfg.get('chunked_size', -1) > 0:
            raise make_refusal('GroundingDINO with test_cfg.chunked_size, which runs once for each chunk of the text,')
        tokens, caption, _, _ = model.get_tokens_positive_and_prompts(list(texts), True)
        with torch.no_grad():
            text = model.language_model([caption])
            text['embedded'] = model.text_feat_map(text['embedded'])
        if not text['text_token_mask'].all():
            raise make_refusal('GroundingDINO with language_model.pad_to_max=True')
        self.text = dict(
            memory_text=text['embedded'], text_self_attention_masks=text['masks'], position_ids=text['position_ids']
        )
        shares_KL = torch.zeros(len(texts), model.bbox_head.max_text_len)
        for label, token_indices in tokens.items():  # labels count from 1
            if not token_indices:
                raise ExportError(f'--texts takes classes that the language model reads, got {texts[label - 1]!r}')
            shares_KL[label - 1, token_indices] = 1 / len(token_indices)
        self.shares_KL = shares_KL

    def forward(self, maps: tuple[Tensor, ...], view: boxes.View) -> tuple[Tensor, ...]:
        parts, head = self.parts, self.parts.bbox_head
        B = maps[0].shape[0]
        sizes = list_level_sizes(maps)
        x_BTC = flatten_maps(maps)
        masks: list[Any] = [None] * len(sizes) if view.content is None else make_padding_masks(view.content, sizes)
        ratios = x_BTC.new_ones(1, len(sizes), 2) if view.content is None else compute_valid_ratios(masks)
        mask_BT = None if view.content is None else torch.cat([tensor.flatten(1) for tensor in masks], 1)
        positions = [
            parts.positional_encoding(mask, input=tensor) + level[:, None, None]
            for tensor, mask, level in zip(maps, masks, parts.level_embed)
        ]
        shared: dict[str, Any] = dict(spatial_shapes=sizes, level_start_index=None, valid_ratios=ratios)
        text = {name: tensor.expand(B, *tensor.shape[1:]) for name, tensor in self.text.items()}
        memory: Any = parts.encoder(
            query=x_BTC, query_pos=flatten_maps(positions), key_padding_mask=mask_BT, **shared, **text
        )
        words: dict[str, Any] = {}
        if text:
            memory, words['memory_text'] = memory
            words['text_token_mask'] = words['memory_text'].new_ones(words['memory_text'].shape[:2], dtype=torch.bool)
        inputs, _ = parts.pre_decoder(
            memory=memory, memory_mask=ratios, spatial_shapes=sizes, **words
        )  # mmdet passes the ratios to `_make_proposals`
        inputs.pop('text_attention_mask', None)  # no token is masked
        refines = self.is_dino or parts.with_box_refine
        shared.update(reg_branches=head.reg_branches if refines else None)
        shared.update(self_attn_mask=inputs.pop('dn_mask')) if self.is_dino else None
        first = inputs['reference_points']
        states, references = parts.decoder(value=inputs.pop('memory'), key_padding_mask=mask_BT, **inputs, **shared)
        references = references if self.is_dino else [first, *references]
        classes, results = (outputs[-1] for outputs in head(states, list(references), **words))
        scores_BQK = classes.sigmoid() if head.loss_cls.use_sigmoid else classes.softmax(-1)[..., :-1]
        if text:
            scores_BQK = scores_BQK @ self.shares_KL.t()
        boxes_BQ4 = boxes.clip(bbox_cxcywh_to_xyxy(results) * view.image_size.flip(0).repeat(2), view.image_size)
        scores_BN, boxes_BN4, label_BN = boxes.rank_pairs(scores_BQK, boxes_BQ4, self.max_objects, view)
        if self.score_thr is not None:
            scores_BN = torch.where(scores_BN > self.score_thr, scores_BN, NEVER)
        if self.nms:
            scores_BN, boxes_BN4, label_BN, _ = boxes.suppress(
                boxes_BN4, scores_BN, label_BN, self.nms, self.max_objects
            )
        return boxes.list_objects(scores_BN, boxes_BN4, label_BN)[:4]

    def _make_proposals(self, memory_BTC: Tensor, ratios_1L2: Tensor, sizes: LevelSizes) -> tuple[Tensor, Tensor]:
        """Return the encoder's output and the logits of boxes at all tokens: (B, T, C), (1, T, 4).

        Boxes of the padding have a centre above 1.
        """
        centre_1T2 = find_token_places(sizes, ratios_1L2)
        sides = [centre_1T2.new_full((1, H * W, 2), 0.05 * 2.0**level) for level, (H, W) in enumerate(sizes)]
        box_1T4 = torch.cat([centre_1T2, torch.cat(sides, 1)], -1)
        inside_1T1 = ((box_1T4 > 0.01) & (box_1T4 < 0.99)).all(-1, keepdim=True)
        logits_1T4 = torch.where(inside_1T1, torch.log(box_1T4 / (1 - box_1T4)), float('inf'))
        tokens = self.parts.memory_trans_fc(torch.where(inside_1T1, memory_BTC, 0.0))
        return self.parts.memory_trans_norm(tokens), logits_1T4


class _CoDINO(DINO):
    """The query head of mmdet's project Co-DETR, under the names of DINO's parts."""

    def __init__(self, head: Any):
        nn.Module.__init__(self)
        transformer = head.transformer
        self.positional_encoding, self.level_embed = head.positional_encoding, transformer.level_embeds
        self.encoder, self.decoder = transformer.encoder, transformer.decoder
        self.memory_trans_fc, self.memory_trans_norm = transformer.enc_output, transformer.enc_output_norm
        self.query_embedding, self.num_queries = transformer.query_embed, transformer.two_stage_num_proposals
        self.bbox_head = head


def _encode(
    encoder: Any, query: Tensor, query_pos: Tensor, key_padding_mask: Optional[Tensor], **shared: Any
) -> Tensor:
    """Call mmcv's encoder for tensors (T, B, C) with tensors (B, T, C), like mmdet's encoder."""
    shared.update(
        query_pos=query_pos.transpose(0, 1),
        query_key_padding_mask=key_padding_mask,
        reference_points=find_token_centres(shared['spatial_shapes'], shared['valid_ratios']),
    )
    x_TBC: Tensor = encoder(query.transpose(0, 1), None, None, **shared)
    return x_TBC.transpose(0, 1)


def _decode(decoder: Any, query: Tensor, value: Tensor, self_attn_mask: None, **shared: Any) -> tuple[Tensor, Tensor]:
    """Call Co-DETR's decoder for tensors (Q, B, C) with tensors (B, Q, C), like mmdet's decoder."""
    states, references = decoder(query.transpose(0, 1), key=None, value=value.transpose(0, 1), **shared)
    return states.transpose(1, 2), references
