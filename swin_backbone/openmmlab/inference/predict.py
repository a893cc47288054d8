"""A trained detector, segmentor or classifier on pictures and videos: predictions, drawn and as data."""

import hashlib
import io
import json
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, VISUALIZERS, DefaultScope
from mmengine.runner import load_state_dict
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray
from PIL import Image

from ...devices import require_device
from ...outputs import Outputs
from ...pictures.attention import find_backbone, strides_of
from ...pictures.colours import distinct_colours
from ...windows.grid import Size
from ..checkpointing.completeness import ALLOW_MISSING, check_classes, dataset_meta_of, fit_to_model
from ..checkpointing.loading import load_from_file_or_address, read_checkpoints_safely
from ..data.media import Frame, Medium, VideoWriter, encode_picture
from ..data.own_data.config import set_num_classes
from ..layers.maps import prepare_convolutions
from ..layers.replace import replace_layers
from ..optim.amp import mixed_precision

# COCO's 80 classes have the ids 1 to 90 without these.
COCO_GAPS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
VISUALIZERS_OF = dict(mmdet='DetLocalVisualizer', mmseg='SegLocalVisualizer', mmpretrain='UniversalVisualizer')
COLOURS = 256  # of a palette
TOP = 5  # classes that are written of a classifier's picture
_one_at_a_time = threading.RLock()  # mmengine's scope is one for all threads, and a visualizer holds one picture


class Predictor:
    """A model of a config with a checkpoint's weights. Several threads may use it, one at a time.

    Args:
        cfg: of mmdet, mmseg or mmpretrain.
        checkpoint: path or URL, of the whole model; None: the weights that the config starts from.
        device: as torch names it.
        unsafe_load: see `load_checkpoint`.
        allow_missing: go on where the checkpoint leaves weights of the model random.
        amp: predict in `mixed_precision`.

    Raises:
        ValueError: if the config is of another toolbox, torch has no such device, or the checkpoint does not fit the
            model.
    """

    def __init__(
        self,
        cfg: Config,
        checkpoint: Optional[str],
        device: str,
        unsafe_load: bool = False,
        allow_missing: bool = False,
        amp: bool = False,
    ):
        self.scope = cfg.get('default_scope')
        if self.scope not in VISUALIZERS_OF:
            raise ValueError(f'the config must be one of {", ".join(VISUALIZERS_OF)}, got default_scope={self.scope!r}')
        require_device(device)
        read_checkpoints_safely(unsafe_load)
        self.amp = amp
        if amp:
            replace_layers(cfg.model)
        loaded = {} if checkpoint is None else load_from_file_or_address(checkpoint)
        with _one_at_a_time, DefaultScope.overwrite_default_scope(self.scope):
            self.meta = _dataset_meta(loaded, str(checkpoint), cfg)
            if 'own_data' in cfg:  # whose classes are in the data, and in what was trained on them
                set_num_classes(cfg.model, len(self.meta['classes']))
            if 'data_preprocessor' in cfg:  # of mmpretrain, as its runner does
                cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
            self.model: Any = revert_sync_batchnorm(MODELS.build(cfg.model))
            if checkpoint is None:
                self.model.init_weights()
            else:
                self._load(loaded, checkpoint, allow_missing)
            self.model.to(device).eval()
            if torch.device(device).type == 'cpu':
                prepare_convolutions(self.model)
            pipeline = _pipeline_of_pixels(cfg.test_dataloader.dataset.pipeline, self.scope)
            self.pipeline = Compose(pipeline)
            self._described = repr((cfg.model, pipeline, amp))
            self.visualizer = VISUALIZERS.build(dict(type=VISUALIZERS_OF[self.scope], name='infer'))
        self.visualizer.dataset_meta = self.meta

    def _load(self, loaded: dict[str, Any], checkpoint: str, allow_missing: bool) -> None:
        weights = fit_to_model(self.model, loaded, checkpoint, None if allow_missing else ALLOW_MISSING, {})
        check_classes(self.model, self.meta, checkpoint)
        load_state_dict(self.model, loaded.get('state_dict', loaded) if weights is None else weights, strict=False)

    def prepare(self, frame: Frame) -> dict[str, Any]:
        """What the model takes, of a frame.

        Raises:
            OSError: if the test pipeline cannot make it, as of a picture that is a thousand times as wide as high.
        """
        try:
            with _one_at_a_time, DefaultScope.overwrite_default_scope(self.scope):
                size = frame.pixels.shape[:2]
                prepared: dict[str, Any] = self.pipeline(
                    dict(img=frame.pixels, img_id=0, img_shape=size, ori_shape=size)
                )
                return prepared
        except Exception as error:
            height, width = frame.size
            raise OSError(
                f'{frame.medium.path} is {width}x{height}, of which the test pipeline makes nothing: {error}'
            ) from error

    def can_batch(self, prepared: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether the model takes two frames at once: mmseg pads none to the size of the other."""
        is_same: bool = self.scope == 'mmdet' or prepared['inputs'].shape == other['inputs'].shape
        return is_same

    @torch.no_grad()
    def predict(self, prepared: Sequence[dict[str, Any]]) -> list[BaseDataElement]:
        """What the model sees on each of a batch of frames."""
        precision = mixed_precision(self.model) if self.amp else nullcontext()
        with _one_at_a_time, DefaultScope.overwrite_default_scope(self.scope), precision:
            samples: list[BaseDataElement] = self.model.test_step(pseudo_collate(prepared))
            return samples

    def scores(self, prepared: dict[str, Any]) -> NDArray[Any]:
        """A segmentor's scores of a frame, whose largest is the class of a pixel: (K, H, W) float32."""
        (sample,) = self.predict([prepared])
        return with_background(sample.seg_logits.data.float().cpu().numpy(), self.threshold)

    @property
    def threshold(self) -> Optional[float]:
        """That of a segmentor with one score, above which a pixel is of the second class."""
        return getattr(getattr(self.model, 'decode_head', None), 'threshold', None)

    def seen_size(self, size: Size) -> Size:
        """The height and width that the model sees a frame of `size` at, before it is padded to a multiple."""
        frame = Frame(Medium(Path('made'), 'made', False), 0, np.zeros((*size, 3), np.uint8), size)
        height, width = self.prepare(frame)['inputs'].shape[-2:]
        return height, width

    @property
    def period(self) -> int:
        """By how many pixels a picture may be cut off so that the backbone's windows lie as before: the least common
        multiple of its windows' sides in pixels; 32 for other backbones than this package's."""
        try:
            windows = find_backbone(self.model).window_size
        except ValueError:
            return 32
        return math.lcm(*(stride * side for stride, window in zip(strides_of(self.model), windows) for side in window))

    @property
    def identity(self) -> str:
        """A digest of what the predictions depend on: weights, config of the model, and test pipeline."""
        digest = hashlib.sha256(self._described.encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f'{name} {tensor.dtype} {tuple(tensor.shape)}'.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    def draw(self, frame: Frame, sample: BaseDataElement, score_thr: float) -> NDArray[Any]:
        """The frame with its predictions on it, (H, W, 3) uint8 BGR."""
        more = dict(pred_score_thr=score_thr) if self.scope == 'mmdet' else {}
        pixels = cv2.cvtColor(frame.pixels, cv2.COLOR_BGR2RGB)
        with _one_at_a_time:
            if self.scope == 'mmpretrain':
                self.visualizer.visualize_cls(pixels, sample.cpu(), draw_gt=False, name=frame.name)
            else:
                self.visualizer.add_datasample(frame.name, pixels, sample.cpu(), draw_gt=False, **more)
            drawn: NDArray[np.uint8] = cv2.cvtColor(self.visualizer.get_image(), cv2.COLOR_RGB2BGR)
        return drawn


class Results:
    """Writes predictions as `outputs`, and counts them; all but the overlays in the pixels of the picture itself.

        overlays/NAME.jpg    each picture with its predictions drawn, NAME.mp4 for a video
        results.json         of a detector: COCO results, (image_id, category_id, bbox, score, segmentation); of a
                             classifier: (file_name, class, score) of each picture, with the five best classes
        images.json          the images and categories that the ids in results.json stand for, in COCO's format
        labels/NAME.png      of a segmentor, and of a panoptic head: the class of each pixel, numbered from 0, with the
                             classes' colours as the palette; of more than 256 classes in 16 bits of grey

    Args:
        outputs: their folder is made if it is not there.
        predictor: whose predictions these are.
        score_thr: objects below are neither drawn nor written.
    """

    def __init__(self, outputs: Outputs, predictor: Predictor, score_thr: float):
        self.outputs = outputs
        self.predictor = predictor
        self.score_thr = score_thr
        self.images: list[dict[str, Any]] = []
        self.objects: list[dict[str, Any]] = []
        self.category_ids = category_ids_of(predictor.meta['classes']) if predictor.scope == 'mmdet' else []
        self.video: Optional[tuple[Medium, VideoWriter]] = None

    def check(self, media: Sequence[Medium]) -> None:
        """See that what will be made of media may be written.

        Raises:
            FileExistsError: if not, naming the first.
        """
        for medium in media:
            self.outputs.check(self._path('overlays', medium.name, '.mp4' if medium.is_video else '.jpg'))
            if self.predictor.scope == 'mmseg' and not medium.is_video:
                self.outputs.check(self._path('labels', medium.name, '.png'))
        self.outputs.check(*self._tables())

    def add(self, frame: Frame, sample: BaseDataElement) -> None:
        """Write one frame's predictions.

        Raises:
            OSError: if they cannot be written.
        """
        overlay = self.predictor.draw(frame, sample, self.score_thr)
        height, width = frame.size
        image_id = len(self.images) + 1
        self.images.append(dict(id=image_id, file_name=file_name_of(frame), height=height, width=width))
        objects, labels_png = self.data_of(frame, sample, image_id)
        self.objects += objects
        if labels_png is not None:
            self.outputs.write(self._path('labels', frame.name, '.png'), labels_png)
        if frame.medium.is_video:
            if self.video is None or self.video[0] != frame.medium:
                self._close_video()
                path = self._path('overlays', frame.medium.name, '.mp4')
                self.video = frame.medium, VideoWriter(path, frame.medium, self.outputs)
            self.video[1].write(overlay)
        else:
            self.outputs.write(self._path('overlays', frame.name, '.jpg'), encode_picture('.jpg', overlay))

    def data_of(
        self, frame: Frame, sample: BaseDataElement, image_id: int
    ) -> tuple[list[dict[str, Any]], Optional[bytes]]:
        """One frame's predictions as data: what results.json has of it, and the PNG of its labels, if it has any."""
        objects: list[dict[str, Any]] = []
        labels_png = None
        if 'pred_instances' in sample:
            objects += self._coco_objects(sample.pred_instances.cpu().numpy(), image_id, frame)
        for name in ('pred_sem_seg', 'pred_panoptic_seg'):
            if name in sample:
                field = sample.get(name)
                labels = field.get('data' if name == 'pred_sem_seg' else 'sem_seg')[0].cpu().numpy()
                if name == 'pred_panoptic_seg':
                    labels = labels % 1000  # of class and instance together, mmdet's INSTANCE_OFFSET
                dtype = np.uint8 if len(self.predictor.meta['classes']) <= COLOURS else np.uint16
                labels = _enlarge(labels.astype(dtype), frame.size)
                labels_png = _encode_labels(labels, self.predictor.meta['palette'])
        if 'pred_score' in sample:
            objects.append(self._best_classes(sample.pred_score, file_name_of(frame)))
        return objects, labels_png

    def close(self) -> None:
        """Write what is about all frames together."""
        self._close_video()
        for path, data in self._tables().items():
            self.outputs.write(path, json.dumps(data).encode())

    def _tables(self) -> dict[Path, Any]:
        """The files about all frames together, and what they hold."""
        folder = self.outputs.folder
        tables: dict[Path, Any] = {}
        if self.predictor.scope == 'mmdet':
            names = zip(self.category_ids, self.predictor.meta['classes'])
            categories = [dict(id=number, name=name) for number, name in names]
            tables[folder / 'images.json'] = dict(images=self.images, categories=categories)
        if self.predictor.scope in ('mmdet', 'mmpretrain'):
            tables[folder / 'results.json'] = self.objects
        return tables

    def _best_classes(self, scores: torch.Tensor, file_name: str) -> dict[str, Any]:
        best = scores.cpu().topk(min(TOP, len(scores)))
        names = [self.predictor.meta['classes'][label] for label in best.indices.tolist()]
        top = [{'class': name, 'score': score} for name, score in zip(names, best.values.tolist())]
        return dict(file_name=file_name, **top[0], top=top)

    def _coco_objects(self, instances: Any, image_id: int, frame: Frame) -> Iterator[dict[str, Any]]:
        (height, width), seen = frame.size, frame.pixels.shape
        scale = np.array([width / seen[1], height / seen[0]] * 2)
        for index in np.flatnonzero(instances.scores >= self.score_thr):
            found: dict[str, Any] = dict(
                image_id=image_id,
                category_id=self.category_ids[int(instances.labels[index])],
                score=float(instances.scores[index]),
            )
            if 'bboxes' in instances:
                x1, y1, x2, y2 = map(float, instances.bboxes[index] * scale)
                found['bbox'] = [x1, y1, x2 - x1, y2 - y1]
            if 'masks' in instances:
                found['segmentation'] = _encode(_enlarge(instances.masks[index].astype(np.uint8), frame.size))
            yield found

    def _path(self, folder: str, name: str, suffix: str) -> Path:
        return self.outputs.folder / folder / (name + suffix)

    def _close_video(self) -> None:
        if self.video is not None:
            self.video[1].close()
            self.video = None


def file_name_of(frame: Frame) -> str:
    """What results call a frame."""
    return str(frame.medium.path) + (f'#{frame.number}' if frame.medium.is_video else '')


def with_background(scores_KHW: NDArray[Any], threshold: Optional[float]) -> NDArray[Any]:
    """Scores of which the largest is the class, also of a segmentor with one score, which is a probability.

    Raises:
        ValueError: if there is one score, and no threshold to compare it with.
    """
    if len(scores_KHW) > 1:
        return scores_KHW
    if threshold is None:
        raise ValueError('the model gives one score a pixel, and no threshold to compare it with')
    return np.concatenate([np.full_like(scores_KHW, threshold), scores_KHW])


def _pipeline_of_pixels(pipeline: Sequence[dict[str, Any]], scope: str) -> list[dict[str, Any]]:
    """A test pipeline that starts from pixels, and asks for no annotations."""
    loader = [dict(type=f'{scope}.LoadImageFromNDArray')] if scope != 'mmpretrain' else []  # which has none
    kept = [dict(step) for step in pipeline if 'Annotations' not in step['type']]
    return [*loader, *(step for step in kept if not step['type'].startswith('LoadImage'))]


def _dataset_meta(loaded: dict[str, Any], checkpoint: str, cfg: Config) -> dict[str, Any]:
    """Classes and colours: of the checkpoint, else of the config's data set."""
    meta = dataset_meta_of(loaded)
    if 'classes' not in meta:
        dataset = cfg.test_dataloader.dataset
        with DATASETS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
            published = registry.get(dataset.type)
        meta = dict(getattr(published, 'METAINFO', {}), **dataset.get('metainfo', {}))
    if 'classes' not in meta:
        raise ValueError('neither the checkpoint nor test_dataloader.dataset.metainfo says what the classes are')
    if not meta.get('palette'):
        meta['palette'] = distinct_colours(len(meta['classes']))
    meta['palette'] = [tuple(colour) for colour in meta['palette']]  # mmdet draws no lists
    return meta


def category_ids_of(classes: Sequence[str]) -> list[int]:
    """COCO's own ids for COCO's classes; from 1 for any others."""
    from mmdet.datasets import CocoDataset

    if tuple(classes) == tuple(CocoDataset.METAINFO['classes']):
        return [number for number in range(1, 91) if number not in COCO_GAPS]
    return list(range(1, len(classes) + 1))


def _encode(mask: NDArray[Any]) -> dict[str, Any]:
    from pycocotools import mask as coco_mask

    rle = coco_mask.encode(np.asfortranarray(mask))
    return dict(size=[int(side) for side in rle['size']], counts=rle['counts'].decode('ascii'))


def _enlarge(values: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Classes or a mask, (H, W) uint8 or uint16, at another height and width."""
    return values if values.shape == size else cv2.resize(values, size[::-1], interpolation=cv2.INTER_NEAREST)


def _encode_labels(labels: NDArray[Any], palette: Sequence[Sequence[int]]) -> bytes:
    """Classes as a PNG with a palette of RGB colours, which viewers show; Pillow reads classes, OpenCV the colours.

    Those of 16 bits are grey."""
    # All 256 colours: Pillow writes fewer bits a pixel for a short palette, and changes values that are beyond it.
    colours = np.zeros((COLOURS, 3), np.uint8)
    colours[: len(palette)] = palette[:COLOURS]
    image = Image.fromarray(labels)
    if labels.dtype == np.uint8:
        image.putpalette(colours.tobytes())
    encoded = io.BytesIO()
    image.save(encoded, 'PNG')
    return encoded.getvalue()
