"""Write predictions of pictures and videos: overlays, COCO results, labels."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Optional, Union

import cv2
import numpy as np
from mmengine.structures import BaseDataElement

from ...outputs import check_outputs, claim_folder, lock_folder, make_folder
from ...whole_files import write_whole
from ..data.media import Frame, Medium
from .coco_ids import CocoIds
from .prediction import Prediction, find_category_ids
from .predictor import Predictor
from .thresholds import ScoreThr, choose_score_thr
from .video_writer import VideoWriter

BEST_CLASSES = 5  # written of a classifier's picture


class ResultsWriter:
    """Write predictions. Positions are pixels of the original picture; overlays may be reduced.

        overlays/NAME.jpg    each picture with its predictions drawn; NAME.mp4 for a video
        results.json         of a detector: COCO results, (image_id, category_id, bbox, score, segmentation); of a
                             classifier: (file_name, class, score) of each picture, with the five best classes
        images.json          images and categories of the ids in results.json, in COCO's format
        panoptic/NAME.png    of a panoptic head: the segments in COCO's format, with panoptic.json
        labels/NAME.png      of a segmentor or panoptic head: see `Prediction.labels_png`
        features/NAME.npz    maps of the backbone, `arr_0` and further, each (C, H, W): see `Predictor.compute_features`

    Args:
        out_dir: the folder.
        predictor: source of the predictions.
        score_thr: lowest score of a drawn and written object, see `choose_score_thr`.
        first_label: value of the first class in label PNGs.
        annotations: COCO JSON with the ids of a detector's pictures and categories. Default: pictures have ids from 1,
            and categories those of the training, see `Prediction`.
        save_features: write features.

    Raises:
        ValueError: for annotations or thresholds of another model, or features of a model without a backbone.
        DataError: see `CocoIds`.
    """

    def __init__(
        self,
        out_dir: Path,
        predictor: Predictor,
        score_thr: Optional[ScoreThr],
        first_label: int = 0,
        annotations: Optional[str] = None,
        save_features: bool = False,
    ):
        self.out_dir = out_dir
        self.predictor = predictor
        self.score_thr = choose_score_thr(predictor, score_thr)
        self.first_label = first_label
        self.images: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []  # of results.json
        self.panoptic: list[dict[str, Any]] = []  # annotations of panoptic.json
        head = getattr(predictor.model, 'panoptic_fusion_head', None)
        self.is_panoptic = head is not None and (head.test_cfg or {}).get('panoptic_on', True)
        self.ids = None if annotations is None else CocoIds(annotations, predictor)
        self.video: Optional[VideoWriter] = None  # the open one
        if save_features:
            predictor.require_backbone()
        self.save_features = save_features

    @contextmanager
    def claim_outputs(
        self, media: Sequence[Medium], read_files: Sequence[Union[str, Path]], overwrite: bool
    ) -> Iterator[None]:
        """Keep other processes out of the folder during the context, at whose end the JSON files are written.

        Predictions before an error are written too. No result replaces a file that is read.

        Args:
            media: the pictures and videos whose predictions follow.
            read_files: further files that no result may replace.
            overwrite: replace other files.

        Raises:
            FileExistsError: if a result would replace a file, see `check_outputs`.
            FolderInUse: if another process writes there.
            DataError: if a picture has no id in the annotations.
        """
        if self.ids is not None:
            self.ids.require_all([medium.path for medium in media])
        paths = [*self._make_tables()]
        suffix_of = {'labels': '.png'} if self.predictor.scope == 'mmseg' or self.is_panoptic else {}  # by folder
        suffix_of |= {'features': '.npz'} if self.save_features else {}
        suffix_of |= {'panoptic': '.png'} if self.is_panoptic else {}
        for medium in media:
            paths.append(self._make_path('overlays', medium.name, '.mp4' if medium.is_video else '.jpg'))
            for folder, suffix in suffix_of.items():
                path = self._make_path(folder, medium.name, '' if medium.is_video else suffix)
                paths += path.rglob(f'*{suffix}') if medium.is_video else [path]
        inputs = [*read_files, *(medium.path for medium in media)]
        check = partial(check_outputs, *paths, inputs=inputs, overwrite=overwrite)
        check()
        make_folder(self.out_dir)
        with lock_folder(self.out_dir, 'writes to'):
            check()  # another process may have ended in between
            for folder in ('overlays', *suffix_of):
                claim_folder(self.out_dir / folder, overwrite=True)
            try:
                yield
            finally:
                try:
                    self.close_video()
                finally:
                    for path, table in self._make_tables().items():
                        write_whole(path, json.dumps(table).encode())

    def write(self, frame: Frame, sample: BaseDataElement, model_input: Optional[dict[str, Any]] = None) -> None:
        """Write the predictions of a frame.

        Args:
            model_input: input of the model; None: no features are written.

        Raises:
            OSError: if a file cannot be written.
        """
        overlay = self.predictor.draw(frame, sample, self.score_thr)
        height, width = frame.original_size
        image_id = len(self.images) + 1 if self.ids is None else self.ids.find_id(frame.medium.path)
        file_name = str(frame.medium.path) + (f'#{frame.number}' if frame.medium.is_video else '')
        prediction = Prediction(str(frame.medium.path), sample, frame, self.predictor, self.score_thr, self.ids)
        new_entries = make_entries(prediction, image_id, file_name)
        labels_png = prediction.labels_png(self.first_label)
        if labels_png is not None:
            write_whole(self._make_path('labels', frame.name, '.png'), labels_png)
        if (encoded := prediction.segments_png()) is not None:
            segments_png, segments = encoded
            write_whole(self._make_path('panoptic', frame.name, '.png'), segments_png)
        if self.save_features and model_input is not None:
            np.savez(file := BytesIO(), *self.predictor.compute_features(model_input))
            write_whole(self._make_path('features', frame.name, '.npz'), file.getvalue())
        if frame.medium.is_video:
            if self.video is None or self.video.source != frame.medium:
                self.close_video()
                self.video = VideoWriter(self._make_path('overlays', frame.medium.name, '.mp4'), frame.medium)
            self.video.write(overlay)
        else:
            write_whole(self._make_path('overlays', frame.name, '.jpg'), cv2.imencode('.jpg', overlay)[1].tobytes())
        # Last: a picture whose files cannot be written has no results.
        self.images.append(dict(id=image_id, file_name=file_name, height=height, width=width))
        self.entries += new_entries
        if encoded is not None:
            self.panoptic.append(dict(image_id=image_id, file_name=f'{frame.name}.png', segments_info=segments))

    def _make_tables(self) -> dict[Path, Any]:
        """Return the contents of the JSON files, by path."""
        tables: dict[Path, Any] = {}
        if self.predictor.scope == 'mmdet':
            ids = self.ids.categories if self.ids else find_category_ids(self.predictor)
            classes = self.predictor.meta['classes']
            categories = [dict(id=category_id, name=name) for category_id, name in zip(ids, classes)]
            source = 'ids of pictures from 1 in this file, of categories as in the training, or from 1'
            info = dict(description=f'ids of {self.ids.path}' if self.ids else source)
            tables[self.out_dir / 'images.json'] = dict(info=info, images=self.images, categories=categories)
            if self.is_panoptic or self.panoptic:
                things = self.predictor.meta.get('thing_classes', ())
                categories = [dict(item, isthing=int(item['name'] in things)) for item in categories]
                tables[self.out_dir / 'panoptic.json'] = dict(
                    images=self.images, annotations=self.panoptic, categories=categories
                )
        if self.predictor.scope in ('mmdet', 'mmpretrain'):
            tables[self.out_dir / 'results.json'] = self.entries
        return tables

    def _make_path(self, folder: str, name: str, suffix: str) -> Path:
        return self.out_dir / folder / (name + suffix)

    def close_video(self) -> None:
        """Complete the open video, if there is one. Raises OSError if it cannot be written; it is closed then too."""
        video, self.video = self.video, None
        if video is not None:
            video.close()


def make_entries(prediction: Prediction, image_id: int, file_name: str) -> list[dict[str, Any]]:
    """Return the entries of a picture in results.json: see `ResultsWriter`."""
    if 'pred_score' not in prediction.sample:
        return prediction.coco(image_id)
    best = zip(prediction.names[:BEST_CLASSES], prediction.scores.tolist())
    top = [{'class': name, 'score': score} for name, score in best]
    return [dict(file_name=file_name, **top[0], top=top)]
