"""A model from a config's name to its predictions, in Python: what the tools do, one call each.

It imports mmdet or mmseg only when it is called.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

if TYPE_CHECKING:
    from mmengine.config import Config
    from numpy.typing import NDArray

PathLike = Union[str, Path]


class Prediction(NamedTuple):
    """What a model sees on a picture.

    Args:
        path: of the picture; None for pixels.
        sample: the toolbox's own data sample, with `pred_instances` or `pred_sem_seg`, on the CPU.
        drawn: the picture with what was seen, (H, W, 3) uint8 RGB.
        classes: the names that labels count.
    """

    path: Optional[str]
    sample: Any
    drawn: NDArray[Any]
    classes: tuple[str, ...]


class Model:
    """A config of mmdet or mmseg, maybe with a checkpoint: `load` makes one.

    Attributes:
        cfg: the config, as a training takes it.
        checkpoint: path or URL of the weights; None before a training.
        work_dir: folder for logs and checkpoints.
    """

    def __init__(self, arguments: dict[str, Any], checkpoint: Optional[str], device: Optional[str]):
        self._arguments, self.checkpoint, self._device = arguments, checkpoint, device
        self._predictor: Any = None
        self.cfg: Config = self._configured(None)
        self.work_dir = str(self.cfg.work_dir)

    def _configured(self, settings: Any) -> Config:
        from .openmmlab import runtime

        cfg = runtime.load_config(**self._arguments, settings=settings)
        return cfg

    def train(
        self,
        epochs: Optional[int] = None,
        batch: Optional[int] = None,
        img_scale: Optional[tuple[int, int]] = None,
        lr: Optional[float] = None,
        *,
        resume: bool = False,
    ) -> Model:
        """Train, and keep the last checkpoint: tools/train.py.

        Args:
            epochs: how often all pictures are seen; this and the next three are the config's own by default, and change
                what hangs together with them, as the options of tools/train.py do.
            batch: pictures of a step, on each device.
            img_scale: (width, height) in pixels.
            lr: the learning rate.
            resume: continue from the last checkpoint in the working folder.

        Returns:
            The model itself.

        Raises:
            ValueError: if something in the config or the data cannot work, naming it.
            TrainingStopped: if training ends before its time.
        """
        from .openmmlab import runtime
        from .openmmlab.checkpointing.checkpoint_hook import find_checkpoint_hook
        from .openmmlab.config.paths import make_folder, require_data
        from .openmmlab.config.published import start_from
        from .openmmlab.config.training_settings import Settings
        from .openmmlab.data.check_data import check_own_data
        from .openmmlab.training.lock import only_training_in

        cfg = self._configured(Settings(epochs, batch, img_scale, lr))
        runtime.set_resume(cfg, 'auto' if resume else None)
        if self.checkpoint is not None and not resume:
            start_from(cfg, self.checkpoint)
        require_data(cfg, ('train', 'val'))
        check_own_data(cfg)
        make_folder(cfg.work_dir, 'work_dir')
        with only_training_in(cfg.work_dir, 0):
            runner = runtime.build_runner(cfg)
            runtime.run(runner, 'train')
        hook = find_checkpoint_hook(runner)
        self.cfg, self._predictor = runner.cfg, None
        self.checkpoint = getattr(hook, 'saved_path', None) or self.checkpoint
        return self

    def test(self) -> dict[str, float]:
        """The metrics of the config on its test data, at the scale that was trained on: tools/test.py.

        Raises:
            ValueError: if there is no checkpoint, or something in it, the config or the data cannot work.
        """
        from .openmmlab import runtime
        from .openmmlab.config.paths import require_data

        cfg = copy.deepcopy(self.cfg)
        runtime.set_checkpoint(cfg, self._require_checkpoint('test'))
        require_data(cfg, ('test',))
        metrics: dict[str, float] = runtime.run(runtime.build_runner(cfg, whole=True), 'test')
        return metrics

    def predict(
        self, pictures: Union[PathLike, NDArray[Any], Sequence[Union[PathLike, NDArray[Any]]]], score_thr: float = 0.3
    ) -> list[Prediction]:
        """What the model sees on pictures: tools/infer.py, without files.

        Args:
            pictures: paths of pictures, folders or patterns, or pixels (H, W, 3) uint8 RGB; one, or a list.
            score_thr: objects with lower scores are not drawn.

        Raises:
            ValueError: if there is no checkpoint, or no such picture.
            OSError: if a picture cannot be read.
        """
        import numpy as np

        from .devices import default_device
        from .openmmlab.inference.predict import Predictor

        if self._predictor is None:
            device = self._device or default_device()
            self._predictor = Predictor(self.cfg, self._require_checkpoint('predict'), device)
        predictions = []
        for path, frame in _frames(pictures):
            (sample,) = self._predictor.predict([self._predictor.prepare(frame)])
            drawn = np.ascontiguousarray(self._predictor.draw(frame, sample, score_thr)[..., ::-1])
            predictions.append(Prediction(path, sample.cpu(), drawn, tuple(self._predictor.meta['classes'])))
        return predictions

    def export(self, out: PathLike, format: str = 'onnx', **options: Any) -> dict[str, Any]:
        """Write a folder that runs without torch: see `swin_backbone.export.export.export`, which takes the options.

        Returns:
            The contents of deploy.json.
        """
        from .export.export import export

        return export(self.cfg, self._require_checkpoint('export'), Path(out), format, **options)

    def _require_checkpoint(self, what: str) -> str:
        if self.checkpoint is None:
            raise ValueError(f'to {what}, a model needs a checkpoint: load(..., checkpoint=...), or train() before')
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
    """A model to train, test, predict with and export.

    Args:
        config: a path, or `mmdet::...`, `mmseg::...` or `swin_backbone::...`.
        checkpoint: path or URL of the weights of the whole model.
        backbone: put this Swin in place of the config's backbone; see `swap_backbone`.
        data: your own pictures with their annotations: a folder, or a COCO JSON.
        annotations: their file or folder, where it is not below `data`.
        work_dir: folder for logs and checkpoints; work_dirs/ and the config's name by default.
        options: settings of the config by their keys, as --cfg-options: {'train_dataloader.num_workers': 0}.
        recipe: with `backbone`: 'swin', the Swin recipe's optimizer, or 'keep', the config's own.
        at: with `backbone`: the key of the backbone that is replaced, where there are several.
        device: for predictions; CUDA if there is one by default.

    Raises:
        ValueError: if there is no such config, or something does not fit it, naming it.

    Examples:
        >>> from swin_backbone import load
        >>> model = load('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', backbone='swin-t')  # doctest: +SKIP
        >>> model.train(epochs=2).predict('street.jpg')  # doctest: +SKIP
    """
    arguments = dict(
        path=str(config),
        work_dir=None if work_dir is None else str(work_dir),
        cfg_options=options,
        launcher='none',
        backbone=backbone,
        recipe=recipe,
        at=at,
        data=data,
        annotations=annotations,
    )
    if checkpoint is not None and '://' not in str(checkpoint) and not Path(checkpoint).is_file():
        raise ValueError(f'checkpoint takes a file or an address, got {str(checkpoint)!r}, which is no file')
    return Model(arguments, None if checkpoint is None else str(checkpoint), device)


def _frames(pictures: Any) -> list[tuple[Optional[str], Any]]:
    """Each picture with its path."""
    import numpy as np

    from .openmmlab.data.media import Frame, Medium, find_media, read_frames

    given = pictures if isinstance(pictures, (list, tuple)) else [pictures]
    frames: list[tuple[Optional[str], Any]] = []
    for number, one in enumerate(given):
        if isinstance(one, (str, Path)):
            for medium in find_media([str(one)]):
                frames += [(str(medium.path), frame) for frame in read_frames(medium)]
            continue
        pixels = np.asarray(one)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
            raise TypeError(
                f'pictures takes paths, or pixels (H, W, 3) uint8, got {pixels.dtype} of the shape {pixels.shape}'
            )
        medium = Medium(Path(f'picture {number}'), f'picture_{number}', False)
        frames.append((None, Frame(medium, 0, np.ascontiguousarray(pixels[..., ::-1]), (len(pixels), len(pixels[0])))))
    return frames
