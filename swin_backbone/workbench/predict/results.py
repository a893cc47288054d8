"""Write predictions of pictures and videos: overlays, COCO results, labels."""

import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Optional, Union

import cv2
import numpy as np
import torch
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray

from ...outputs import check_outputs, claim_folder, make_folder
from ...whole_files import write_whole
from ..data.media import Frame, Medium, VideoWriter
from ..pictures.colours import encode_labels
from .coco_ids import CocoIds
from .prediction import label_map_of
from .predictor import Predictor

COCO_GAPS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # unused ids from 1 to 90
TOP = 5  # written classes of a classifier's picture


class Results:
    """Writer of predictions. Positions are pixels of the original picture; overlays may be reduced.

        overlays/NAME.jpg    each picture with its predictions drawn; NAME.mp4 for a video
        results.json         of a detector: COCO results, (image_id, category_id, bbox, score, segmentation); of a
                             classifier: (file_name, class, score) of each picture, with the five best classes
        images.json          images and categories of the ids in results.json, in COCO's format
        labels/NAME.png      of a segmentor or panoptic head: see `encode_labels`
        features/NAME.npz    maps of the backbone, `arr_0` and further, (C, H, W) float32: see `Predictor.features`

    Args:
        out_dir: the folder.
        predictor: source of the predictions.
        score_thr: lowest score of a drawn and written object.
        first_label: value of the first class in labels.
        annotations: COCO JSON with the ids of pictures and categories, of a detector. Default: numbers from 1.
        save_features: write features.

    Raises:
        ValueError: for annotations of another model, or features of a model without a backbone.
        DataError: see `CocoIds`.
    """

    def __init__(
        self,
        out_dir: Path,
        predictor: Predictor,
        score_thr: float,
        first_label: int = 0,
        annotations: Optional[str] = None,
        save_features: bool = False,
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
        if save_features:
            predictor.require_backbone()
        self.save_features = save_features

    def check(self, media: Sequence[Medium], inputs: Sequence[Union[str, Path]], overwrite: bool) -> None:
        """Check the media, and mark the folders of results, before the first prediction.

        Raises:
            FileExistsError: if a result would replace a file. See `check_outputs`.
            DataError: if a picture has no id in the annotations.
        """
        if self.ids is not None:
            self.ids.check([medium.path for medium in media])
        paths = [*self._tables()]
        folders = {'labels': '.png', **({'features': '.npz'} if self.save_features else {})}
        for medium in media:
            paths.append(self._path('overlays', medium.name, '.mp4' if medium.is_video else '.jpg'))
            for folder, suffix in folders.items():
                path = self._path(folder, medium.name, '' if medium.is_video else suffix)
                paths += path.rglob(f'*{suffix}') if medium.is_video else [path]
        check_outputs(*paths, inputs=[*inputs, *(medium.path for medium in media)], overwrite=overwrite)
        make_folder(self.out_dir)
        for folder in ('overlays', *folders):
            claim_folder(self.out_dir / folder, overwrite=True)

    def add(self, frame: Frame, sample: BaseDataElement, prepared: Optional[dict[str, Any]] = None) -> None:
        """Write the predictions of a frame, which is prepared for features.

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
        if self.save_features and prepared is not None:
            np.savez(file := BytesIO(), *self.predictor.features(prepared))
            write_whole(self._path('features', frame.name, '.npz'), file.getvalue())
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
        if 'pred_instances' in sample:
            objects += self._coco_objects(sample.pred_instances.cpu().numpy(), image_id, frame)
        labels, labels_png = label_map_of(sample), None
        if labels is not None:
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


def category_ids_of(classes: Sequence[str]) -> list[int]:
    """Return the official ids of COCO's classes, or for other classes the numbers from 1."""
    from mmdet.datasets import CocoDataset

    if tuple(classes) == tuple(CocoDataset.METAINFO['classes']):
        return [number for number in range(1, 91) if number not in COCO_GAPS]
    return list(range(1, len(classes) + 1))


def _enlarge(values: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Return classes or a mask, (H, W) uint8 or uint16, resized to `size`."""
    return values if values.shape == size else cv2.resize(values, size[::-1], interpolation=cv2.INTER_NEAREST)
