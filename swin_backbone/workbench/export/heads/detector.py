"""mmdet's detectors as a graph: from pixels to objects.

Layout: B batch, H W height and width, n objects.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import torch
from mmengine.config import Config
from torch import Tensor, nn

from ....sizes import Size
from ...configs.data_parts import find_tested_dataset
from ..graph import BackboneMaps, Graph, Port, choose_example_size, make_refusal
from ..picture import Normalise, Padding, make_picture_ports, make_settings, measure_content
from .boxes import View
from .dense import DenseHead
from .detr import TransformerHead
from .layers import copy_for_graph, make_size_tensor
from .mask2former import InstanceHead
from .sparse import SparseHead
from .two_stage import RegionHead


class Detector(nn.Module):
    """From pixels to the objects of all pictures of a batch, in pixels of the original picture."""

    def __init__(self, model: Any, head: Any, padding: Padding):
        super().__init__()
        self.padding = padding
        self.normalise = Normalise(model.data_preprocessor)
        self.maps = BackboneMaps(model.backbone, copy_for_graph(model.neck) if model.with_neck else None)
        self.head = head

    def forward(self, picture: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        resized = make_size_tensor(picture.shape[1], picture.shape[2], size.float())
        picture, content = self.padding(picture, size)
        image = self.normalise(picture)
        maps = self.maps(image)
        image_size = make_size_tensor(picture.shape[1], picture.shape[2], image)
        if content is not None:
            resized = measure_content(content).to(image.dtype)
            image_size, content = (image_size, None) if self.padding.counts_as_picture else (resized, content)
        zoom_2 = (resized / size.to(image.dtype)).flip(0)
        picture_size: Any = None
        if self.head.with_masks:
            picture_size = size.tolist()
            for side in picture_size:
                torch._check(side >= 1)
        padded: Any = image.shape[-2:]
        inner: Any = picture.shape[1:3]
        view = View(image_size, torch.cat([zoom_2, zoom_2]), padded, inner, picture_size, content)
        results: tuple[Tensor, ...] = self.head(maps, view)
        return results


def build_head(model: Any, texts: Sequence[str] = ()) -> nn.Module:
    """Return the graph's head for a detector, or raise an ExportError with the part that prevents the export."""
    from mmdet.models import detectors

    heads: dict[Any, Any] = {
        detectors.SparseRCNN: SparseHead,
        detectors.TwoStageDetector: RegionHead,
        detectors.Mask2Former: InstanceHead,
        detectors.SingleStageDetector: DenseHead,
        detectors.GroundingDINO: partial(TransformerHead, texts=texts),
        detectors.DetectionTransformer: TransformerHead,
    }
    if type(model).__name__ == 'CoDETR':  # class of an mmdet project, not imported here
        heads = {type(model): TransformerHead}
    for detector, make_head in heads.items():
        if isinstance(model, detector):
            for method in ('predict', 'extract_feat'):
                if getattr(type(model), method) is not getattr(detector, method):
                    raise make_refusal(
                        f'{type(model).__name__}.{method}, which differs from that of {detector.__name__},'
                    )
            head: nn.Module = make_head(model)
            return head
    raise make_refusal(type(model).__name__)


def build_detector_graph(model: Any, cfg: Config, shape: Optional[Size], texts: Sequence[str] = ()) -> Graph:
    """Return the graph of a whole detector. Arguments and errors: see `export_model`."""
    head: Any = build_head(model, texts)
    example = choose_example_size(model.backbone, shape)
    padding = Padding(find_tested_dataset(cfg).pipeline)
    example = padding.example_size or example
    module = Detector(model, head, padding).eval()
    outputs = [
        Port('image', 'int64', ('objects',)),
        Port('boxes', 'float32', ('objects', 4)),
        Port('scores', 'float32', ('objects',)),
        Port('labels', 'int64', ('objects',)),
    ]
    if head.with_masks:
        outputs.append(Port('masks', 'uint8', ('objects', 'own_height', 'own_width')))
    task = 'instances' if head.with_masks else 'boxes'
    settings = make_settings(cfg, module.normalise, head.planes, head.max_objects)
    return Graph(
        module, task, make_picture_ports(model, head.batch_size, shape), outputs, shape is None, example, settings
    )
