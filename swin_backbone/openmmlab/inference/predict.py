"""Predict pictures and videos with a trained detector, segmentor or classifier; draw and write the predictions."""

import hashlib
import io
import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional, Union

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

from ...outputs import check_outputs, claim_folder, make_folder
from ...pictures.attention import find_backbone, strides_of
from ...pictures.colours import distinct_colours
from ...positions import Size
from ...whole_files import write_whole
from ..checkpointing.completeness import ALLOW_MISSING, dataset_meta_of, fit_to_model
from ..checkpointing.loading import load_from_file_or_address, read_checkpoints_safely
from ..config.check import compare_classes
from ..data.media import Frame, Medium, VideoWriter
from ..data.own_data.config import set_num_classes
from ..layers.accelerate import accelerate
from ..optim.amp import check_amp, mixed_precision
from .by_shape import predict_by_shape
from .coco_ids import CocoIds

COCO_GAPS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # unused ids from 1 to 90
VISUALIZERS_OF = dict(mmdet='DetLocalVisualizer', mmseg='SegLocalVisualizer', mmpretrain='UniversalVisualizer')
COLOURS = 256  # of a palette
TOP = 5  # written classes of a classifier's picture
_one_at_a_time = threading.RLock()  # all threads share mmengine's scope; a visualizer holds a single picture


class Predictor:
    """Model of a config with the weights of a checkpoint. Calls of several threads run in turn.

    Args:
        cfg: of mmdet, mmseg or mmpretrain.
        checkpoint: path or URL of the whole model; None: initial weights of the config.
        device: name of torch.
        unsafe_load: see `load_checkpoint`.
        allow_missing: accept a checkpoint without some weights of the model.
        amp: predict in `mixed_precision` of this dtype; None: in float32.

    Raises:
        ValueError: if the config is of another toolbox, or the checkpoint does not fit the model.
    """

    def __init__(
        self,
        cfg: Config,
        checkpoint: Optional[str],
        device: str,
        unsafe_load: bool = False,
        allow_missing: bool = False,
        amp: Optional[str] = None,
    ):
        self.scope = cfg.get('default_scope')
        if self.scope not in VISUALIZERS_OF:
            raise ValueError(f'the config must be one of {", ".join(VISUALIZERS_OF)}, got default_scope={self.scope!r}')
        read_checkpoints_safely(unsafe_load)
        self.amp = amp and check_amp(amp, torch.device(device).type)
        loaded = {} if checkpoint is None else load_from_file_or_address(checkpoint)
        with _one_at_a_time, DefaultScope.overwrite_default_scope(self.scope):
            self.meta = _dataset_meta(loaded, str(checkpoint), cfg)
            if 'own_data' in cfg:  # the checkpoint has the classes
                set_num_classes(cfg.model, len(self.meta['classes']))
            if 'data_preprocessor' in cfg:  # as mmpretrain's runner does
                cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
            self.model: Any = revert_sync_batchnorm(MODELS.build(cfg.model))
            if checkpoint is None:
                self.model.init_weights()
            else:
                self._load(loaded, checkpoint, allow_missing)
                compare_classes(cfg, self.meta['classes'], checkpoint)
            self.model.to(device).eval()
            predict_by_shape(self.model)
            if torch.device(device).type == 'cpu':
                accelerate(self.model)
            steps = cfg.test_dataloader.dataset.pipeline
            pipeline = [dict(step) for step in steps if not re.match('LoadImage|.*Annotations', step['type'])]
            if self.scope != 'mmpretrain':  # which has no loader of pixels
                pipeline.insert(0, dict(type=f'{self.scope}.LoadImageFromNDArray'))
            self.pipeline = Compose(pipeline)
            self._described = repr((cfg.model, pipeline, self.amp))
            self.visualizer = VISUALIZERS.build(dict(type=VISUALIZERS_OF[self.scope], name='infer'))
        self.visualizer.dataset_meta = self.meta

    def _load(self, loaded: dict[str, Any], checkpoint: str, allow_missing: bool) -> None:
        weights = fit_to_model(self.model, loaded, checkpoint, None if allow_missing else ALLOW_MISSING)
        load_state_dict(self.model, loaded.get('state_dict', loaded) if weights is None else weights, strict=False)

    def prepare(self, frame: Frame) -> dict[str, Any]:
        """Return a frame as input of the model.

        Raises:
            OSError: if the test pipeline fails, as for a picture 1000 times as wide as high.
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
                f'{frame.medium.path} of {width}x{height} pixels is no input for the test pipeline: {error}'
            ) from error

    @torch.no_grad()
    def predict(self, prepared: Sequence[dict[str, Any]]) -> list[BaseDataElement]:
        """Return the predictions for each frame of a batch."""
        precision = mixed_precision(self.model, self.amp) if self.amp else nullcontext()
        with _one_at_a_time, DefaultScope.overwrite_default_scope(self.scope), precision:
            samples: list[BaseDataElement] = self.model.test_step(pseudo_collate(prepared))
            return samples

    def scores(self, prepared: dict[str, Any]) -> NDArray[Any]:
        """Return a segmentor's scores of a frame, (K, H, W) float32. The largest score decides the class."""
        (sample,) = self.predict([prepared])
        return with_background(sample.seg_logits.data.float().cpu().numpy(), self.threshold)

    @property
    def threshold(self) -> Optional[float]:
        """Return the score from which a pixel has the second class, for a segmentor with a single score."""
        return getattr(getattr(self.model, 'decode_head', None), 'threshold', None)

    def input_size(self, size: Size) -> Size:
        """Return height and width of the model's input for a frame of `size`, before padding to a multiple."""
        frame = Frame(Medium(Path('zeros'), 'zeros', False), 0, np.zeros((*size, 3), np.uint8), size)
        height, width = self.prepare(frame)['inputs'].shape[-2:]
        return height, width

    @property
    def period(self) -> int:
        """Return the least common multiple of the windows' sides in pixels; 32 for a backbone of another package.

        A shift by a multiple of the period moves all windows with the picture.
        """
        try:
            windows = find_backbone(self.model).window_size
        except ValueError:
            return 32
        return math.lcm(*(stride * side for stride, window in zip(strides_of(self.model), windows) for side in window))

    @property
    def identity(self) -> str:
        """Return a digest of weights, config of the model, and test pipeline."""
        digest = hashlib.sha256(self._described.encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f'{name} {tensor.dtype} {tuple(tensor.shape)}'.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    def draw(self, frame: Frame, sample: BaseDataElement, score_thr: float) -> NDArray[Any]:
        """Return the frame with its predictions drawn, (H, W, 3) uint8 BGR."""
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
    """Writer of predictions. Positions are pixels of the original picture; overlays may be reduced.

        overlays/NAME.jpg    each picture with its predictions drawn; NAME.mp4 for a video
        results.json         of a detector: COCO results, (image_id, category_id, bbox, score, segmentation); of a
                             classifier: (file_name, class, score) of each picture, with the five best classes
        images.json          images and categories of the ids in results.json, in COCO's format
        labels/NAME.png      of a segmentor or panoptic head: see `encode_labels`

    Args:
        out_dir: the folder.
        predictor: source of the predictions.
        score_thr: lowest score of a drawn and written object.
        first_label: value of the first class in labels.
        annotations: COCO JSON with the ids of pictures and categories, of a detector. Default: numbers from 1.

    Raises:
        ValueError: for annotations of another model.
        DataError: see `CocoIds`.
    """

    def __init__(
        self,
        out_dir: Path,
        predictor: Predictor,
        score_thr: float,
        first_label: int = 0,
        annotations: Optional[str] = None,
    ):
        self.out_dir = out_dir
        self.predictor = predictor
        self.score_thr = score_thr
        self.first_label = first_label
        self.images: list[dict[str, Any]] = []
        self.objects: list[dict[str, Any]] = []
        self.category_ids = category_ids_of(predictor.meta['classes']) if predictor.scope == 'mmdet' else []
        self.ids: Optional[CocoIds] = None
        if annotations is not None:
            if predictor.scope != 'mmdet':
                raise ValueError('--annotations takes a detector: results of other models have no ids')
            self.ids = CocoIds(annotations, predictor.meta['classes'])
            self.category_ids = self.ids.categories
        self.video: Optional[tuple[Medium, VideoWriter]] = None

    def check(self, media: Sequence[Medium], inputs: Sequence[Union[str, Path]], overwrite: bool) -> None:
        """Check the media, and mark the folders of results, before the first prediction.

        Raises:
            FileExistsError: if a result would replace a file. See `check_outputs`.
            DataError: if a picture has no id in the annotations.
        """
        if self.ids is not None:
            self.ids.check([medium.path for medium in media])
        paths = [*self._tables()]
        for medium in media:
            paths.append(self._path('overlays', medium.name, '.mp4' if medium.is_video else '.jpg'))
            labels = self._path('labels', medium.name, '' if medium.is_video else '.png')
            paths += labels.rglob('*.png') if medium.is_video else [labels]
        check_outputs(*paths, inputs=[*inputs, *(medium.path for medium in media)], overwrite=overwrite)
        make_folder(self.out_dir)
        for folder in (self.out_dir / 'overlays', self.out_dir / 'labels'):
            claim_folder(folder, overwrite=True)

    def add(self, frame: Frame, sample: BaseDataElement) -> None:
        """Write the predictions of a frame.

        Raises:
            OSError: if the disk is full.
        """
        overlay = self.predictor.draw(frame, sample, self.score_thr)
        height, width = frame.size
        image_id = len(self.images) + 1 if self.ids is None else self.ids.of(frame.medium.path)
        self.images.append(dict(id=image_id, file_name=file_name_of(frame), height=height, width=width))
        objects, labels_png = self.data_of(frame, sample, image_id)
        self.objects += objects
        if labels_png is not None:
            write_whole(self._path('labels', frame.name, '.png'), labels_png)
        if frame.medium.is_video:
            if self.video is None or self.video[0] != frame.medium:
                self._close_video()
                path = self._path('overlays', frame.medium.name, '.mp4')
                self.video = frame.medium, VideoWriter(path, frame.medium)
            self.video[1].write(overlay)
        else:
            write_whole(self._path('overlays', frame.name, '.jpg'), cv2.imencode('.jpg', overlay)[1].tobytes())

    def data_of(
        self, frame: Frame, sample: BaseDataElement, image_id: int
    ) -> tuple[list[dict[str, Any]], Optional[bytes]]:
        """Return the entries of a frame for results.json, and its labels as a PNG, or None."""
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
                labels = _enlarge(labels.astype(np.uint16), frame.size)
                labels_png = encode_labels(labels, self.predictor.meta, self.first_label)
        if 'pred_score' in sample:
            objects.append(self._best_classes(sample.pred_score, file_name_of(frame)))
        return objects, labels_png

    def close(self) -> None:
        """Finish the video and write the JSON files."""
        self._close_video()
        for path, data in self._tables().items():
            write_whole(path, json.dumps(data).encode())

    def _tables(self) -> dict[Path, Any]:
        """Return the contents of the JSON files, by path."""
        tables: dict[Path, Any] = {}
        if self.predictor.scope == 'mmdet':
            names = zip(self.category_ids, self.predictor.meta['classes'])
            categories = [dict(id=number, name=name) for number, name in names]
            source = f'ids of {self.ids.path}' if self.ids else 'ids of this file alone, numbers from 1'
            info = dict(description=source)
            tables[self.out_dir / 'images.json'] = dict(info=info, images=self.images, categories=categories)
        if self.predictor.scope in ('mmdet', 'mmpretrain'):
            tables[self.out_dir / 'results.json'] = self.objects
        return tables

    def _best_classes(self, scores: torch.Tensor, file_name: str) -> dict[str, Any]:
        best = scores.cpu().topk(min(TOP, len(scores)))
        names = [self.predictor.meta['classes'][label] for label in best.indices.tolist()]
        top = [{'class': name, 'score': score} for name, score in zip(names, best.values.tolist())]
        return dict(file_name=file_name, **top[0], top=top)

    def _coco_objects(self, instances: Any, image_id: int, frame: Frame) -> Iterator[dict[str, Any]]:
        from pycocotools import mask as coco_mask

        height, width = frame.size
        scale = np.array([width / frame.pixels.shape[1], height / frame.pixels.shape[0]] * 2)
        for index in np.flatnonzero(instances.scores >= self.score_thr):
            result: dict[str, Any] = dict(
                image_id=image_id,
                category_id=self.category_ids[int(instances.labels[index])],
                score=float(instances.scores[index]),
            )
            if 'bboxes' in instances:
                x1, y1, x2, y2 = map(float, instances.bboxes[index] * scale)
                result['bbox'] = [x1, y1, x2 - x1, y2 - y1]
            if 'masks' in instances:
                mask_HW = _enlarge(instances.masks[index].astype(np.uint8), frame.size)
                counts = coco_mask.encode(np.asfortranarray(mask_HW))['counts']
                result['segmentation'] = dict(size=list(frame.size), counts=counts.decode('ascii'))
            yield result

    def _path(self, folder: str, name: str, suffix: str) -> Path:
        return self.out_dir / folder / (name + suffix)

    def _close_video(self) -> None:
        if self.video is not None:
            self.video[1].close()
            self.video = None


def file_name_of(frame: Frame) -> str:
    """Return the name of a frame in the results."""
    return str(frame.medium.path) + (f'#{frame.number}' if frame.medium.is_video else '')


def with_background(scores_KHW: NDArray[Any], threshold: Optional[float]) -> NDArray[Any]:
    """Return scores whose largest decides the class. A single score, a probability, gets the threshold beside it."""
    if len(scores_KHW) > 1:
        return scores_KHW
    return np.concatenate([np.full_like(scores_KHW, threshold), scores_KHW])


def _dataset_meta(loaded: dict[str, Any], checkpoint: str, cfg: Config) -> dict[str, Any]:
    """Return classes and colours of the checkpoint or, without them, of the config's data set."""
    meta = dataset_meta_of(loaded)
    if 'classes' not in meta:
        dataset = cfg.test_dataloader.dataset
        with DATASETS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
            cls = registry.get(dataset.type)
        meta = dict(getattr(cls, 'METAINFO', {}), **dataset.get('metainfo', {}))
    if 'classes' not in meta:
        raise ValueError('neither the checkpoint nor test_dataloader.dataset.metainfo has the classes')
    if not meta.get('palette'):
        meta['palette'] = distinct_colours(len(meta['classes']))
    meta['palette'] = [tuple(colour) for colour in meta['palette']]  # mmdet cannot draw lists
    return meta


def category_ids_of(classes: Sequence[str]) -> list[int]:
    """Return the official ids of COCO's classes, or for other classes the numbers from 1."""
    from mmdet.datasets import CocoDataset

    if tuple(classes) == tuple(CocoDataset.METAINFO['classes']):
        return [number for number in range(1, 91) if number not in COCO_GAPS]
    return list(range(1, len(classes) + 1))


def _enlarge(values: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Return classes or a mask, (H, W) uint8 or uint16, resized to `size`."""
    return values if values.shape == size else cv2.resize(values, size[::-1], interpolation=cv2.INTER_NEAREST)


def encode_labels(labels: NDArray[Any], meta: dict[str, Any], first: int = 0) -> bytes:
    """Return the class of each pixel as a PNG with a palette, or, if 256 values are too few, in 16 bits of grey.

    Args:
        labels: classes from 0, (H, W).
        meta: classes, and their RGB colours as palette.
        first: value of the first class.
    """
    if first + len(meta['classes']) > COLOURS:
        image = Image.fromarray(labels.astype(np.uint16) + np.uint16(first))
    else:
        image = Image.fromarray(labels.astype(np.uint8) + np.uint8(first))
        # For a short palette Pillow writes fewer bits a pixel, and changes values beyond the palette.
        colours = np.zeros((COLOURS, 3), np.uint8)
        palette = meta['palette'][: COLOURS - first]
        colours[first : first + len(palette)] = palette
        image.putpalette(colours.tobytes())
    encoded = io.BytesIO()
    image.save(encoded, 'PNG')
    return encoded.getvalue()
