"""Deformable attention of DETRs and pixel decoders on a CPU.

Layout: B batch, Q queries, S tokens of all maps, h heads, L maps, P points of a map.
"""

from typing import Any, Optional

from mmcv.ops import MultiScaleDeformableAttention as Base
from torch import Tensor

from ...kernels.detection import takes_tensor
from ...kernels.detection.deformable import deformable_attention, takes_attention


class MultiScaleDeformableAttention(Base):
    """mmcv's layer. The compiled library computes the samples where possible; mmcv's `grid_sample` takes longer."""

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        identity: Optional[Tensor] = None,
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        reference_points: Optional[Tensor] = None,
        spatial_shapes: Optional[Tensor] = None,
        level_start_index: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tensor:
        """See mmcv's layer: (Q, B, C) to (Q, B, C), or (B, Q, C) if `batch_first`."""
        if (
            reference_points is None
            or spatial_shapes is None
            or not takes_tensor(query)
            or not self._takes_sizes(query, query if value is None else value, spatial_shapes)
        ):
            return super().forward(
                *(query, key, value, identity, query_pos, key_padding_mask),
                *(reference_points, spatial_shapes, level_start_index),
                **kwargs,
            )
        values, locations, weights = prepare_samples(
            self, query, value, query_pos, key_padding_mask, reference_points, spatial_shapes.flip(-1)
        )
        y = self.output_proj(deformable_attention(values, spatial_shapes, locations, weights))
        return self.dropout(y if self.batch_first else y.transpose(0, 1)) + (query if identity is None else identity)

    def _takes_sizes(self, query: Tensor, value: Tensor, spatial_shapes: Tensor) -> bool:
        """Return whether the library takes the sizes."""
        if query.dim() != 3 or value.dim() != 3:
            return False
        values_BSC = value if self.batch_first else value.transpose(0, 1)
        return takes_attention(
            values_BSC, spatial_shapes, self.num_heads, query.shape[self.batch_first], self.num_points
        )


def prepare_samples(
    layer: Any,
    query: Tensor,
    value: Optional[Tensor],
    query_pos: Optional[Tensor],
    key_padding_mask: Optional[Tensor],
    reference_points: Tensor,
    sides_L2: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return values (B, S, h, C/h), locations (B, Q, h, L, P, 2) from 0 to 1 and weights (B, Q, h, L, P) of a layer.

    Args:
        sides_L2: width and height of the maps.
    """
    value = query if value is None else value
    query = query if query_pos is None else query + query_pos
    if not layer.batch_first:
        query, value = query.transpose(0, 1), value.transpose(0, 1)
    values_BSC = layer.value_proj(value)
    if key_padding_mask is not None:
        values_BSC = values_BSC.masked_fill(key_padding_mask[..., None], 0.0)
    (B, Q, _), h, L, P = query.shape, layer.num_heads, layer.num_levels, layer.num_points
    offsets = layer.sampling_offsets(query).view(B, Q, h, L, P, 2)
    weights = layer.attention_weights(query).view(B, Q, h, L * P).softmax(-1).view(B, Q, h, L, P)
    centres = reference_points[:, :, None, :, None, :2]
    if reference_points.shape[-1] == 2:
        locations = centres + offsets / sides_L2[:, None, :]
    else:  # boxes: the offsets are parts of half a side
        locations = centres + offsets / P * reference_points[:, :, None, :, None, 2:] * 0.5
    return values_BSC.unflatten(-1, (h, -1)), locations, weights
