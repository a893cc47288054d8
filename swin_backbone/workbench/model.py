"""The tools as methods of a model: train, test, predict, export. Toolboxes are imported at the first call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

if TYPE_CHECKING:
    from mmengine.config import Config
    from numpy.typing import NDArray

    from .job import Options

PathLike = Union[str, Path]


class Prediction(NamedTuple):
    """The prediction for a picture.

    Args:
        path: path of the picture; None for pixels.
        sample: the toolbox's data sample, with `pred_instances` or `pred_sem_seg`, on the CPU.
        drawn: the picture with the predictions, (H, W, 3) uint8 RGB.
        classes: names of the classes, by label.
    """

    path: Optional[str]
    sample: Any
    drawn: NDArray[Any]
    classes: tuple[str, ...]


class Model:
    """A config of mmdet or mmseg with or without a checkpoint, made by `load`.

    Attributes:
        cfg: the config of the last training.
        checkpoint: path or URL of the weights; None without weights.
        work_dir: folder of logs and checkpoints.
    """

    def __init__(self, config: str, options: Options, checkpoint: Optional[str], device: Optional[str]):
        from .job import Job

        self._config, self._options, self.checkpoint, self._device = config, options, checkpoint, device
        self._predictor: Any = None
        self.cfg: Config = Job(config, options).cfg
        self.work_dir = str(self.cfg.work_dir)

    def train(
        self,
        epochs: Optional[int] = None,
        batch: Optional[int] = None,
        img_scale: Optional[tuple[int, int]] = None,
        lr: Optional[float] = None,
        *,
        balance: bool = False,
        val_loss: bool = False,
        resume: bool = False,
    ) -> Model:
        """Train as tools/train.py, and use the last checkpoint from then on.

        None keeps the config's setting. Settings that depend on a changed setting follow, as in tools/train.py.

        Args:
            epochs: passes over all pictures.
            batch: pictures per step and device.
            img_scale: (width, height) in pixels.
            lr: learning rate.
            balance: let rare classes count more.
            val_loss: compute the losses on the validation set too, at each validation.
            resume: continue from the last checkpoint in the working folder.

        Returns:
            The model itself.

        Raises:
            ValueError: for an error in the config or the data.
            TrainingStopped: if training ends early.
        """
        from .configs.training_settings import TrainingSettings
        from .job import Job

        settings = TrainingSettings(epochs, batch, img_scale, lr, balance=balance)
        options = replace(self._options, settings=settings, val_loss=val_loss)
        runner = Job(self._config, options).train(*((None, 'auto') if resume else (self.checkpoint, None)))
        self.cfg, self._predictor = runner.cfg, None
        self.checkpoint = runner.last_checkpoint or self.checkpoint
        return self

    def test(self) -> dict[str, float]:
        """Return the metrics on the test data, as tools/test.py. Pictures have the size of the training.

        Raises:
            ValueError: without a checkpoint, or for an error in the checkpoint, the config or the data.
        """
        from .job import Job

        return Job(self.cfg).test(self._require_checkpoint('test'), device=self._device or 'cpu')

    def report(self, out_dir: PathLike, compare: Sequence[PathLike] = (), *, overwrite: bool = False) -> dict[str, Any]:
        """Test, and write out_dir/index.html, a page on what the model gets wrong, and out_dir/report.json.

        Args:
            compare: folders of other reports, shown beside this one.
            overwrite: replace an earlier report.

        Returns:
            The contents of report.json.

        Raises:
            ValueError: as `test`, and for a run to compare without a report of this task.
            FileExistsError: without `overwrite`, if there is a report.
        """
        from .job import Job

        checkpoint = self._require_checkpoint('report')
        return Job(self.cfg).report(checkpoint, out_dir, compare, overwrite, device=self._device or 'cpu')

    def predict(
        self, pictures: Union[PathLike, NDArray[Any], Sequence[Union[PathLike, NDArray[Any]]]], score_thr: float = 0.3
    ) -> list[Prediction]:
        """Return the predictions for pictures, as tools/infer.py without files.

        Args:
            pictures: a path of a picture, a folder, a pattern, pixels (H, W, 3) uint8 RGB, or a list of these.
            score_thr: objects with lower scores are not drawn.

        Raises:
            ValueError: without a checkpoint, or if a path has no pictures.
            OSError: if a picture cannot be read.
        """
        import numpy as np

        from .job import Job

        if self._predictor is None:
            self._predictor = Job(self.cfg).open_predictor(self._require_checkpoint('predict'), self._device)
        predictions = []
        for path, frame in _frames(pictures):
            (sample,) = self._predictor.predict([self._predictor.prepare(frame)])
            drawn = np.ascontiguousarray(self._predictor.draw(frame, sample, score_thr)[..., ::-1])
            predictions.append(Prediction(path, sample.cpu(), drawn, tuple(self._predictor.meta['classes'])))
        return predictions

    def export(self, out: PathLike, format: str = 'onnx', **options: Any) -> dict[str, Any]:
        """Write a folder that runs without torch. Options: see `swin_backbone.workbench.export.export.export`.

        Returns:
            The contents of deploy.json.
        """
        from .job import Job

        return Job(self.cfg).export(self._require_checkpoint('export'), Path(out), format, **options)

    def _require_checkpoint(self, action: str) -> str:
        if self.checkpoint is None:
            raise ValueError(f'to {action}, a model needs a checkpoint: load(..., checkpoint=...), or train() before')
        return self.checkpoint


def load(
    config: PathLike,
    checkpoint: Optional[PathLike] = None,
    *,
    backbone: Optional[str] = None,
    data: Optional[PathLike] = None,
    annotations: Optional[PathLike] = None,
    work_dir: Optional[PathLike] = None,
    options: Optional[dict[str, Any]] = None,
    recipe: str = 'swin',
    at: Optional[str] = None,
    device: Optional[str] = None,
) -> Model:
    """Return a model to train, test, predict with and export.

    Args:
        config: a path, or `mmdet::...`, `mmseg::...` or `swin_backbone::...`.
        checkpoint: path or URL of the weights of the whole model; or an exported folder, to test and predict.
        backbone: put this Swin in place of the config's backbone; see `swap_backbone`.
        data: your own pictures with annotations: a folder, or a COCO JSON.
        annotations: file or folder of the annotations, if they are not below `data`.
        work_dir: folder of logs and checkpoints. Default: work_dirs/ and the config's name.
        options: settings of the config by key, as --cfg-options: {'train_dataloader.num_workers': 0}.
        recipe: with `backbone`: 'swin' for the optimizer of the Swin recipe, 'keep' for the config's own.
        at: with `backbone`: key of the replaced backbone, if the config has several.
        device: device of predictions. Default: the first CUDA device, or the CPU.

    Raises:
        ValueError: if the config is missing, or an argument does not fit the config.

    Examples:
        >>> from swin_backbone import load
        >>> model = load('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', backbone='swin-t')  # doctest: +SKIP
        >>> model.train(epochs=2).predict('street.jpg')  # doctest: +SKIP
    """
    from .job import Options

    given = Options(
        backbone=backbone,
        at=at,
        recipe=recipe,
        data=data,
        annotations=annotations,
        cfg_options=options or {},
        work_dir=None if work_dir is None else str(work_dir),
    )
    return Model(str(config), given, None if checkpoint is None else str(checkpoint), device)


def _frames(pictures: Any) -> list[tuple[Optional[str], Any]]:
    """Return the frame of each picture, with the path of a file."""
    import numpy as np

    from .data.media import Frame, Medium, find_media, read_frames

    frames: list[tuple[Optional[str], Any]] = []
    for number, picture in enumerate(pictures if isinstance(pictures, (list, tuple)) else [pictures]):
        if isinstance(picture, (str, Path)):
            for medium in find_media([str(picture)]):
                frames += [(str(medium.path), frame) for frame in read_frames(medium)]
            continue
        pixels = np.asarray(picture)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
            raise TypeError(
                f'pictures takes paths, or pixels (H, W, 3) uint8, got {pixels.dtype} of the shape {pixels.shape}'
            )
        medium = Medium(Path(f'picture {number}'), f'picture_{number}', False)
        frames.append((None, Frame(medium, 0, np.ascontiguousarray(pixels[..., ::-1]), (len(pixels), len(pixels[0])))))
    return frames
