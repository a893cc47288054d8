"""Deformable DETR and DINO: mmdet's own encoder, decoder and head, with sizes that stay free.

mmdet puts the maps' sizes into tensors, which an exporter would fix. What reads them is replaced here.

Layout: B batch, C channels, T tokens of all levels, Q queries, K classes, N objects of an image, H W height and width.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..graph import refusal
from . import boxes
from .deformable import Sizes, centres, replace_deformable

OURS = ('DeformableDETR', 'DINO')


class TransformerHead(nn.Module):
    """Turns maps into objects, in pixels of the original picture.

    Args:
        model: mmdet's DeformableDETR or DINO; it is copied without its backbone and neck, not changed.

    Raises:
        ExportError: for another transformer, or if pictures are padded.
    """

    with_masks = False
    planes = 1
    batch = None

    def __init__(self, model: Any):
        super().__init__()
        if type(model).__name__ not in OURS:
            raise refusal(f'{type(model).__name__}.forward_transformer', OURS)
        if model.data_preprocessor.pad_size_divisor != 1:
            raise refusal('data_preprocessor.pad_size_divisor above 1, with masks of the padding,')
        parts = copy.copy(model)
        parts._modules = {name: part for name, part in model._modules.items() if name not in ('backbone', 'neck')}
        self.parts: Any = replace_deformable(parts)
        self.parts.encoder.get_encoder_reference_points = _places
        self.parts.gen_encoder_output_proposals = self._proposals
        self.most: int = model.test_cfg.get('max_per_img', model.num_queries)
        self.is_dino = type(model).__name__ == 'DINO'

    def forward(self, maps: tuple[Tensor, ...], view: boxes.View) -> tuple[Tensor, ...]:
        parts, head = self.parts, self.parts.bbox_head
        B = maps[0].shape[0]
        sizes: Sizes = [tuple(one.shape[-2:]) for one in maps]  # type: ignore[misc]
        x_BTC = torch.cat([one.flatten(2).transpose(1, 2) for one in maps], 1)
        places = [
            parts.positional_encoding(None, input=one).flatten(2).transpose(1, 2) + level
            for one, level in zip(maps, parts.level_embed)
        ]
        shared: dict[str, Any] = dict(
            spatial_shapes=sizes, level_start_index=None, valid_ratios=x_BTC.new_ones(B, len(sizes), 2)
        )
        x_BTC = parts.encoder(query=x_BTC, query_pos=torch.cat(places, 1), key_padding_mask=None, **shared)
        asked, _ = parts.pre_decoder(memory=x_BTC, memory_mask=None, spatial_shapes=sizes)
        refines = self.is_dino or parts.with_box_refine
        shared.update(reg_branches=head.reg_branches if refines else None)
        shared.update(self_attn_mask=asked.pop('dn_mask')) if self.is_dino else None
        first = asked['reference_points']
        states, references = parts.decoder(value=asked.pop('memory'), key_padding_mask=None, **asked, **shared)
        references = references if self.is_dino else [first, *references]
        classes, found = (outputs[-1] for outputs in head(states, list(references)))
        scores_BQK = classes.sigmoid() if head.loss_cls.use_sigmoid else classes.softmax(-1)[..., :-1]
        found_BQ4 = boxes.clip(boxes.corners(found) * view.image_size.flip(0).repeat(2), view.image_size)
        return boxes.ranked(scores_BQK, found_BQ4, self.most, view)

    def _proposals(self, memory_BTC: Tensor, _: Any, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """The encoder's output at each token, and the logits of a box there: (B, T, C), (1, T, 4)."""
        place_T2 = centres(sizes, memory_BTC)
        sides = [place_T2.new_full((H * W, 2), 0.05 * 2.0**level) for level, (H, W) in enumerate(sizes)]
        box_1T4 = torch.cat([place_T2, torch.cat(sides)], -1)[None]
        inside_1T1 = ((box_1T4 > 0.01) & (box_1T4 < 0.99)).all(-1, keepdim=True)
        logits_1T4 = torch.where(inside_1T1, torch.log(box_1T4 / (1 - box_1T4)), float('inf'))
        tokens = self.parts.memory_trans_fc(torch.where(inside_1T1, memory_BTC, 0.0))
        return self.parts.memory_trans_norm(tokens), logits_1T4


def _places(sizes: Sizes, valid_ratios: Tensor, device: Any) -> Tensor:
    """The centre of each token, once for each level: (1, T, levels, 2)."""
    return centres(sizes, valid_ratios)[None, :, None].expand(-1, -1, len(sizes), -1)
