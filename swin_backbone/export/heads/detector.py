"""mmdet's detectors as a graph: from pixels to objects.

Layout: B batch, H W height and width, n objects.
"""

from typing import Any, Optional

import torch
from mmengine.config import Config
from torch import Tensor, nn

from ...windows.grid import Size
from ..graph import BackboneMaps, Graph, Port, check_shape, example_size, most_pixels, refusal
from ..picture import Normalise, preprocessing
from .boxes import size_tensor
from .dense import DenseHead
from .mask2former import InstanceHead
from .two_stage import RegionHead

DENSE = ('RetinaNet', 'ATSS')
QUERIES = ('Mask2Former',)
TWO_STAGE = ('FasterRCNN', 'MaskRCNN', 'CascadeRCNN')


class Detector(nn.Module):
    """From pixels to the objects of all pictures of a batch, in pixels of the original picture."""

    def __init__(self, model: Any, head: Any):
        super().__init__()
        self.normalise = Normalise(model.data_preprocessor, model.data_preprocessor.pad_size_divisor)
        self.maps = BackboneMaps(model.backbone, model.neck if model.with_neck else None)
        self.head = head

    def forward(self, picture: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        image = self.normalise(picture)
        maps = self.maps(image)
        image_size = size_tensor(picture.shape[1], picture.shape[2], image)
        zoom_2 = (image_size / size.to(image.dtype)).flip(0)
        zoom_4 = torch.cat([zoom_2, zoom_2])
        if not self.head.with_masks:
            found: tuple[Tensor, ...] = self.head(maps, image_size, zoom_4)
            return found
        height, width = size.tolist()
        for side in (height, width):
            torch._check(side >= 1)
        if isinstance(self.head, InstanceHead):
            found = self.head(maps, image.shape[-2:], picture.shape[1:3], (height, width))
        else:
            found = self.head(maps, image_size, zoom_4, (height, width))
        return found


def detector_graph(model: Any, cfg: Config, shape: Optional[Size]) -> Graph:
    """The graph of a whole detector.

    Args:
        shape: height and width to which a picture is resized, for batch size 1; None: free batch, height and width.

    Raises:
        ExportError: for a detector that cannot be exported.
    """
    name = type(model).__name__
    if name not in DENSE + TWO_STAGE + QUERIES:
        raise refusal(name, DENSE + TWO_STAGE + QUERIES)
    check_shape(model.backbone, shape)
    make_head = DenseHead if name in DENSE else RegionHead if name in TWO_STAGE else InstanceHead
    head = make_head(model)
    module = Detector(model, head).eval()
    batch, height, width = ('batch', 'height', 'width') if shape is None else (1, *shape)
    outputs = [
        Port('image', 'int64', ('objects',)),
        Port('boxes', 'float32', ('objects', 4)),
        Port('scores', 'float32', ('objects',)),
        Port('labels', 'int64', ('objects',)),
    ]
    if head.with_masks:
        outputs.append(Port('masks', 'uint8', ('objects', 'own_height', 'own_width')))
    return Graph(
        module,
        'instances' if head.with_masks else 'boxes',
        [Port('picture', 'uint8', (batch, height, width, 3)), Port('size', 'int64', (2,))],
        outputs,
        shape is None,
        example_size(model.backbone),
        dict(
            preprocessing=preprocessing(cfg, module.normalise),
            limits=dict(objects=head.most, pixels=most_pixels(head.planes)),
        ),
    )
