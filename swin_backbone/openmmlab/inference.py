"""A trained detector or segmentor on pictures and videos: predictions, drawn and as data."""

import io
import json
from collections.abc import Iterator, Sequence
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
from PIL import Image
from torch import nn

from ..checkpoints import read_checkpoint
from ..checkpoints.fit import backbones_of, fit
from .loading import read_checkpoints_safely
from .media import Frame, Medium, VideoWriter
from .own_data import set_num_classes

# COCO's 80 classes have the ids 1 to 90 without these.
COCO_GAPS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}


class Predictor:
    """A model of a config with a checkpoint's weights.

    Args:
        cfg: of mmdet or mmseg.
        checkpoint: path or URL, of the whole model.
        device: as torch names it.
        unsafe_load: see `load_checkpoint`.

    Raises:
        ValueError: if the config is of another toolbox, or the checkpoint does not fit the model.
    """

    def __init__(self, cfg: Config, checkpoint: str, device: str, unsafe_load: bool = False):
        self.scope = cfg.get('default_scope')
        if self.scope not in ('mmdet', 'mmseg'):
            raise ValueError(f'the config must be one of mmdet or mmseg, got default_scope={self.scope!r}')
        read_checkpoints_safely(unsafe_load)
        loaded = read_checkpoint(checkpoint)
        with DefaultScope.overwrite_default_scope(self.scope):
            self.meta = _dataset_meta(loaded, cfg)
            if 'own_data' in cfg:  # whose classes are in the data, and in what was trained on them
                set_num_classes(cfg, len(self.meta['classes']))
            self.model: nn.Module = revert_sync_batchnorm(MODELS.build(cfg.model))
            self._load(loaded, checkpoint)
            self.model.to(device).eval()
            self.pipeline = Compose(_pipeline_of_pixels(cfg.test_dataloader.dataset.pipeline, self.scope))
            self.visualizer = VISUALIZERS.build(
                dict(type='DetLocalVisualizer' if self.scope == 'mmdet' else 'SegLocalVisualizer', name='infer')
            )
        self.visualizer.dataset_meta = self.meta

    def _load(self, loaded: dict, checkpoint: str) -> None:
        state_dict = loaded.get('state_dict', loaded)
        if backbones_of(self.model):
            state_dict, report = fit(self.model, loaded, checkpoint)
            report.log()
        own = self.model.state_dict()
        wrong = [name for name, value in state_dict.items() if name in own and own[name].shape != value.shape]
        missing = [name for name in own if name not in state_dict and not name.startswith('data_preprocessor.')]
        if wrong or missing:
            raise ValueError(
                f'the checkpoint {checkpoint!r} is not of this model: {len(missing)} of {len(own)} weights are missing '
                f'and {len(wrong)} have another shape, as {(missing + wrong)[0]!r}'
            )
        load_state_dict(self.model, state_dict, strict=False)

    @torch.no_grad()
    def predict(self, frames: Sequence[Frame]) -> list[BaseDataElement]:
        """What the model sees on each of a batch of frames."""
        with DefaultScope.overwrite_default_scope(self.scope):
            batch = [self.pipeline(dict(img=frame.pixels, img_id=i)) for i, frame in enumerate(frames)]
            return self.model.test_step(pseudo_collate(batch))

    def draw(self, frame: Frame, sample: BaseDataElement, score_thr: float) -> np.ndarray:
        """The frame with its predictions on it, (H, W, 3) uint8 BGR."""
        more = dict(pred_score_thr=score_thr) if self.scope == 'mmdet' else {}
        pixels = cv2.cvtColor(frame.pixels, cv2.COLOR_BGR2RGB)
        self.visualizer.add_datasample(frame.name, pixels, sample.cpu(), draw_gt=False, **more)
        return cv2.cvtColor(self.visualizer.get_image(), cv2.COLOR_RGB2BGR)


class Results:
    """Writes predictions below a folder, and counts them.

        overlays/NAME.jpg    each picture with its predictions drawn, NAME.mp4 for a video
        results.json         of a detector: COCO results, (image_id, category_id, bbox, score, segmentation)
        images.json          the images and categories that the ids in results.json stand for, in COCO's format
        labels/NAME.png      of a segmentor, and of a panoptic head: the class of each pixel, numbered from 0, with the
                             classes' colours as the palette

    Args:
        out_dir: made if it is not there; what is there under the same names is overwritten.
        predictor: whose predictions these are.
        score_thr: objects below are neither drawn nor written.
    """

    def __init__(self, out_dir: Path, predictor: Predictor, score_thr: float):
        self.out_dir = out_dir
        self.predictor = predictor
        self.score_thr = score_thr
        self.images: list[dict] = []
        self.objects: list[dict] = []
        self.category_ids = _category_ids(predictor.meta['classes'])
        self.video: Optional[tuple[Medium, VideoWriter]] = None

    def add(self, frame: Frame, sample: BaseDataElement) -> None:
        """Write one frame's predictions."""
        height, width = frame.pixels.shape[:2]
        image_id = len(self.images) + 1
        file_name = str(frame.medium.path) + (f'#{frame.index}' if frame.medium.is_video else '')
        self.images.append(dict(id=image_id, file_name=file_name, height=height, width=width))
        if 'pred_instances' in sample:
            self.objects += self._coco_objects(sample.pred_instances.cpu().numpy(), image_id)
        for name in ('pred_sem_seg', 'pred_panoptic_seg'):
            if name in sample:
                field = sample.get(name)
                labels = field.get('data' if name == 'pred_sem_seg' else 'sem_seg')[0].cpu().numpy()
                if name == 'pred_panoptic_seg':
                    labels = labels % 1000  # of class and instance together, mmdet's INSTANCE_OFFSET
                _write_labels(self._path('labels', frame.name, '.png'), labels, self.predictor.meta['palette'])
        overlay = self.predictor.draw(frame, sample, self.score_thr)
        if frame.medium.is_video:
            if self.video is None or self.video[0] != frame.medium:
                self._close_video()
                self.video = frame.medium, VideoWriter(self._path('overlays', frame.medium.name, '.mp4'), frame.medium)
            self.video[1].write(overlay)
        else:
            _write(self._path('overlays', frame.name, '.jpg'), overlay)

    def close(self) -> None:
        """Write what is about all frames together."""
        self._close_video()
        if self.predictor.scope == 'mmdet':
            names = zip(self.category_ids, self.predictor.meta['classes'])
            categories = [dict(id=number, name=name) for number, name in names]
            _write_json(self.out_dir / 'images.json', dict(images=self.images, categories=categories))
            _write_json(self.out_dir / 'results.json', self.objects)

    def _coco_objects(self, instances: Any, image_id: int) -> Iterator[dict]:
        for index in np.flatnonzero(instances.scores >= self.score_thr):
            found = dict(
                image_id=image_id,
                category_id=self.category_ids[int(instances.labels[index])],
                score=float(instances.scores[index]),
            )
            if 'bboxes' in instances:
                x1, y1, x2, y2 = map(float, instances.bboxes[index])
                found['bbox'] = [x1, y1, x2 - x1, y2 - y1]
            if 'masks' in instances:
                found['segmentation'] = _encode(instances.masks[index])
            yield found

    def _path(self, folder: str, name: str, suffix: str) -> Path:
        path = self.out_dir / folder / (name + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _close_video(self) -> None:
        if self.video is not None:
            self.video[1].close()
            self.video = None


def _pipeline_of_pixels(pipeline: Sequence[dict], scope: str) -> list[dict]:
    """A test pipeline that starts from pixels, and asks for no annotations."""
    loader = dict(type=f'{scope}.LoadImageFromNDArray')
    kept = [dict(step) for step in pipeline if 'Annotations' not in step['type']]
    return [loader if step['type'].startswith('LoadImage') else step for step in kept]


def _dataset_meta(loaded: dict, cfg: Config) -> dict:
    """Classes and colours: of the checkpoint, else of the config's data set."""
    meta = dict(loaded.get('meta', {}).get('dataset_meta') or {})
    meta = {name.lower(): value for name, value in meta.items()}
    if 'classes' not in meta:
        dataset = cfg.test_dataloader.dataset
        meta = dict(DATASETS.get(dataset.type).METAINFO, **dataset.get('metainfo', {}))
    if 'classes' not in meta:
        raise ValueError('neither the checkpoint nor test_dataloader.dataset.metainfo says what the classes are')
    if not meta.get('palette'):  # the colours that the toolboxes take then
        colours = np.random.RandomState(42).randint(0, 256, (len(meta['classes']), 3)).tolist()
        meta['palette'] = [tuple(colour) for colour in colours]
    return meta


def _category_ids(classes: Sequence[str]) -> list[int]:
    """COCO's own ids for COCO's classes; from 1 for any others."""
    from mmdet.datasets import CocoDataset

    if tuple(classes) == tuple(CocoDataset.METAINFO['classes']):
        return [number for number in range(1, 91) if number not in COCO_GAPS]
    return list(range(1, len(classes) + 1))


def _encode(mask: np.ndarray) -> dict:
    from pycocotools import mask as coco_mask

    rle = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return dict(size=[int(side) for side in rle['size']], counts=rle['counts'].decode('ascii'))


def _write(path: Path, pixels: np.ndarray) -> None:
    """Write a picture beside its place, then put it there."""
    encoded = cv2.imencode(path.suffix, pixels)[1]
    _replace(path, encoded.tobytes())


def _write_labels(path: Path, labels: np.ndarray, palette: Sequence[Sequence[int]]) -> None:
    """Write classes as a PNG whose palette has RGB colours: what shows it is coloured, what reads it gets numbers."""
    image = Image.fromarray(labels.astype(np.uint8))
    image.putpalette(np.asarray(palette[:256], np.uint8).tobytes())
    encoded = io.BytesIO()
    image.save(encoded, 'PNG')
    _replace(path, encoded.getvalue())


def _write_json(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, json.dumps(data).encode())


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f'.partial-{path.name}')
    partial.write_bytes(data)
    partial.replace(path)
