"""The tools as methods of a model: train, test, predict, export. Toolboxes are imported at the first call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from ..options import DEFAULTS, Options, refuse_options, with_options
from .predict.prediction import Prediction

if TYPE_CHECKING:
    import torch
    from mmengine.config import Config
    from numpy.typing import NDArray

    from .data.media import Frame, Medium
    from .job import Job

PathLike = Union[str, Path]
# Options of `load` that the config of `combine` does not hold
OPTIONS_AFTER_COMBINE = 'amp precision compile device threads skip_unreadable allow_missing unsafe_load'


class Model:
    """A config of mmdet, mmseg or mmpretrain with or without a checkpoint, or an exported folder, made by `load`.

    Attributes:
        cfg: the config of the last training, or of `load` before one; None for an exported folder alone.
        checkpoint: path or URL of the weights, or an exported folder; None without weights.
        work_dir: folder of logs and checkpoints; None without a config.
        module: the torch module of predictions, in eval mode; without a checkpoint, with initial weights. `train`,
            `test` and `export` build modules of their own, with the weights of the checkpoint.
    """

    def __init__(self, config: str, options: Options, checkpoint: Optional[str]):
        from .export.predictor import is_exported
        from .process import prepare_process

        prepare_process()
        self._config, self._options, self.checkpoint = config, options, checkpoint
        self._cached_predictor: Any = None
        self.cfg: Optional[Config] = None
        self.work_dir: Optional[str] = None
        if is_exported(config):
            if checkpoint is not None:
                raise ValueError(f'load({config!r}, ...), an exported folder, takes no checkpoint, got {checkpoint!r}')
            names = [name for name in DEFAULTS if name not in ('device', 'threads')]
            refuse_options(options, names, f'takes a config, got the exported folder {config}')
            self.checkpoint = config
        else:
            from .job import Job

            self.cfg = Job(config, options).cfg
            self.work_dir = str(self.cfg.work_dir)

    @property
    def module(self) -> torch.nn.Module:
        """See `Model`. Raises ValueError for an exported folder, or an error in the checkpoint."""
        import torch

        module = self._predictor.model
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f'{self.checkpoint} is exported and has no torch module: load its config and checkpoint')
        return module

    def features(self, picture: Union[PathLike, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the maps of the backbone for a picture, each (C, h, w) float32, in the order of its outputs.

        The maps cover the model's input, which is the resized picture, padded at the right and at the bottom.

        Args:
            picture: a path, or pixels (H, W, 3) uint8 RGB.

        Raises:
            ValueError: for an exported folder, or for several pictures.
            OSError: if the picture cannot be read.
        """
        predictor = self._predictor
        frames = list(islice(_iter_frames(picture, predictor), 2))
        if len(frames) != 1:
            raise ValueError(f'features takes one picture, got several: {picture!r:.200}')
        maps: list[NDArray[Any]] = predictor.compute_features(predictor.preprocess(frames[0][1]))
        return maps

    @with_options('epochs batch lr auto_scale_lr balance patience val_loss vis')
    def train(
        self,
        epochs: Optional[int] = None,
        batch: Optional[int] = None,
        img_scale: Optional[tuple[int, int]] = None,
        lr: Optional[float] = None,
        *,
        resume: bool = False,
        **settings: Any,
    ) -> Model:
        """Train as tools/train.py, and use the last checkpoint from then on.

        None keeps the config's setting. Settings that depend on a changed setting follow, as in tools/train.py.

        Args:
            img_scale: (width, height) in pixels.
            resume: continue from the last checkpoint in the working folder.
            **settings: see `Options`.

        Returns:
            The model itself.

        Raises:
            ValueError: for an error in the config or the data.
            TrainingStopped: if training ends early, also by Ctrl-C, after a save. The model has the last checkpoint.
        """
        from .job import Job, open_training
        from .runner.build import run_loop

        self._require_config('train')
        shape = img_scale and img_scale[::-1]
        start = dict(resume='auto') if resume else dict(weights=self.checkpoint)
        options = replace(self._options, epochs=epochs, batch=batch, shape=shape, lr=lr, **start, **settings)
        with open_training(Job(self._config, options)) as runner:
            try:
                run_loop(runner, 'train')
            finally:
                self.cfg, self._cached_predictor = runner.cfg, None
                self.checkpoint = runner.last_checkpoint or self.checkpoint
        return self

    def test(self) -> dict[str, float]:
        """Return the metrics on the test data, as tools/test.py. Pictures have the size of the training.

        Raises:
            ValueError: without a checkpoint, or for an error in the checkpoint, the config or the data.
        """
        from .job import test

        return test(self._make_job('test'), self._require_checkpoint('test'))

    def report(self, out_dir: PathLike, compare: Sequence[PathLike] = (), *, overwrite: bool = False) -> dict[str, Any]:
        """Test, and write out_dir/index.html, a page on what the model gets wrong, and out_dir/report.json.

        Args:
            compare: folders of other reports, shown beside this one.
            overwrite: replace an earlier report.

        Returns:
            The contents of report.json.

        Raises:
            ValueError: as `test`, and if a run to compare has no report of the task.
            FileExistsError: without `overwrite`, if there is a report.
        """
        from .job import report

        return report(self._make_job('report'), self._require_checkpoint('report'), out_dir, compare, overwrite)

    def predict(
        self,
        pictures: Union[PathLike, NDArray[Any], Sequence[Union[PathLike, NDArray[Any]]]],
        score_thr: Optional[Union[float, dict[str, float], PathLike]] = None,
        *,
        annotations: Optional[PathLike] = None,
    ) -> list[Prediction]:
        """Return the predictions for pictures, as tools/infer.py without files.

        Pictures are read one after the other, and again when a prediction is drawn. Frames of videos stay in memory.

        Args:
            pictures: a path of a picture, a folder, a pattern, pixels (H, W, 3) uint8 RGB, or a list of these.
            score_thr: objects with lower scores are left out; or a report.json, with a threshold for each class.
                Default: 0.3, or the threshold that a folder was exported with.
            annotations: COCO JSON with `image_id` and `category_ids` of the predictions, of a detector.

        Raises:
            ValueError: without a checkpoint, if a path has no pictures, if the test pipeline fails on a picture, or if
                `annotations` lack a picture or class.
            OSError: if a picture cannot be read.
        """
        from .predict.coco_ids import CocoIds
        from .predict.thresholds import choose_score_thr

        self._require_checkpoint('predict')
        predictor = self._predictor
        thresholds = choose_score_thr(predictor, score_thr)
        ids = None if annotations is None else CocoIds(str(annotations), predictor)
        predictions = []
        for path, frame in _iter_frames(pictures, predictor):
            (sample,) = predictor.predict([predictor.preprocess(frame)])
            predictions.append(Prediction(path, sample, frame, predictor, thresholds, ids))
        return predictions

    def export(self, out: PathLike, format: str = 'onnx', **settings: Any) -> dict[str, Any]:
        """Write a folder that runs without torch. Settings: see `swin_backbone.workbench.export.export.export_model`.

        Returns:
            The contents of deploy.json.

        Raises:
            ValueError: for `amp`, `precision`, `compile` or `allow_missing` of `load`, and see `export`.
        """
        from .job import export

        reason = 'is for tests and predictions: an export takes a model loaded without it'
        refuse_options(self._options, ('amp', 'precision', 'compile', 'allow_missing'), reason)
        return export(self._make_job('export'), self._require_checkpoint('export'), Path(out), format, **settings)

    @property
    def _predictor(self) -> Any:
        from .job import open_exported, open_predictor

        if self._cached_predictor is None:
            if self.cfg is None:
                self._cached_predictor = open_exported(self._config, self._options)
            else:
                self._cached_predictor = open_predictor(self._make_job('predict'), self.checkpoint)
        return self._cached_predictor

    def _make_job(self, action: str) -> Job:
        from .job import Job

        options = Options(**{name: getattr(self._options, name) for name in OPTIONS_AFTER_COMBINE.split()})
        return Job(self._require_config(action), options)

    def _require_config(self, action: str) -> Config:
        if self.cfg is None:
            raise ValueError(f'to {action}, a model needs a config: load(CONFIG, {self._config!r}) instead')
        return self.cfg

    def _require_checkpoint(self, action: str) -> str:
        if self.checkpoint is None:
            raise ValueError(f'to {action}, a model needs a checkpoint: load(..., checkpoint=...), or train() before')
        return self.checkpoint


@with_options(
    'data backbone seed workers annotations classes at recipe amp precision compile device threads work_dir '
    'skip_unreadable allow_missing unsafe_load'
)
def load(
    config: PathLike,
    checkpoint: Optional[PathLike] = None,
    *,
    options: Optional[dict[str, Any]] = None,
    **settings: Any,
) -> Model:
    """Return a model to train, test, predict with and export.

    Args:
        config: a path, or `mmdet::...`, `mmseg::...` or `swin_backbone::...`; or an exported folder, to predict.
        checkpoint: path or URL of the weights of the whole model; or an exported folder, to test and predict.
        options: settings of the config by key, as --cfg-options: {'train_dataloader.batch_size': 4}.
        **settings: see `Options`.

    Raises:
        ValueError: if the config is missing, or an argument does not fit the config.

    Examples:
        >>> from swin_backbone import load
        >>> model = load('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', backbone='swin-t')  # doctest: +SKIP
        >>> model.train(epochs=2).predict('street.jpg')  # doctest: +SKIP
    """
    values = Options(cfg_options=options or None, **settings)
    return Model(str(config), values, None if checkpoint is None else str(checkpoint))


def _iter_frames(pictures: Any, predictor: Any) -> Iterator[tuple[Optional[str], Frame]]:
    """Return the frames of pictures, each with the path of its file, or None for pixels. The predictor loads files.

    Raises:
        ValueError, TypeError: for a wrong picture, before the first file is read.
    """
    import numpy as np

    from .data.media import find_media, make_frame, read_frames

    def iter_medium(medium: Medium) -> Iterator[tuple[Optional[str], Frame]]:
        return ((str(medium.path), frame) for frame in read_frames(medium, read_pixels=predictor.read_pixels))

    sources: list[Iterable[tuple[Optional[str], Frame]]] = []
    for index, picture in enumerate(pictures if isinstance(pictures, (list, tuple)) else [pictures]):
        if isinstance(picture, (str, Path)):
            sources += map(iter_medium, find_media([str(picture)]))
            continue
        pixels = np.asarray(picture)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
            raise TypeError(
                f'pictures takes paths, or pixels (H, W, 3) uint8, got {pixels.dtype} of the shape {pixels.shape}'
            )
        # a copy: a camera may write the next picture into the same array before this one is drawn
        sources.append([(None, make_frame(pixels[..., ::-1].copy(), Path(f'picture_{index}')))])
    return chain.from_iterable(sources)
