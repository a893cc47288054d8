"""Predict pictures with a trained detector, segmentor or classifier, and draw the predictions."""

import copy
import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, VISUALIZERS, DefaultScope
from mmengine.runner import load_state_dict
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray
from torch import Tensor

from ...acceleration import accelerate
from ...openmmlab.config_parts import find_class
from ...openmmlab.mixed_precision import check_amp, mixed_precision
from ...sizes import Size
from ..configs.class_counts import require_class_count
from ..configs.data_parts import find_tested_dataset
from ..data.load_picture import LOADER, LoadPicture, drops_bits, loads_annotations, loads_picture, use_load_picture
from ..data.media import Frame, convert_to_bgr, describe_dropped_bits, make_frame, require_complete
from ..pictures.attention import find_backbone, list_strides
from ..pictures.colours import make_palette
from ..runner.predict_by_shape import predict_by_shape
from ..weights.completeness import ALLOW_MISSING, adapt_checkpoint, read_dataset_meta
from ..weights.loading import install_checkpoint_loaders, load_from_file_or_address
from .thresholds import SCORE_THR, ScoreThr, list_thresholds

VISUALIZERS_OF = dict(mmdet='DetLocalVisualizer', mmseg='SegLocalVisualizer', mmpretrain='UniversalVisualizer')
_one_at_a_time = threading.RLock()  # all threads share mmengine's scope, and a visualizer, which holds one picture


class Predictor:
    """The model of a config with the weights of a checkpoint. Calls of several threads run in turn.

    `ExportedPredictor` has the same members but `pipeline`, `normalise`, `compute_features` and `binary_threshold`.

    Args:
        cfg: config of mmdet, mmseg or mmpretrain.
        checkpoint: path or URL of the whole model; None: initial weights of the config.
        device: torch's name of the device.
        unsafe_load: see `load_checkpoint`.
        allow_missing: accept a checkpoint without some weights of the model.
        amp: predict in `mixed_precision` of this dtype; None: in float32.
        precision: see `accelerate`.

    Attributes:
        pipeline: the test pipeline behind the step that reads a file. `preprocess` runs it on the pixels of a frame, or
            on those that `read_pixels` read.
        loading_step: the first step of `pipeline`. It converts the colours of pixels, and decodes a file in memory.
        is_dropping_bits: whether `read_pixels` drops bits above 8 and bands above 3.
        score_thr: lowest score of an object: 0.3, or the one that a folder was exported with.

    Raises:
        ValueError: if the config is of another toolbox, or the checkpoint does not fit the model.
    """

    def __init__(
        self,
        cfg: Config,
        checkpoint: Optional[str],
        device: str,
        *,
        unsafe_load: bool = False,
        allow_missing: bool = False,
        amp: Optional[str] = None,
        precision: Optional[str] = None,
    ):
        self.scope = cfg.get('default_scope')
        if self.scope not in VISUALIZERS_OF:
            raise ValueError(f'the config must be one of {", ".join(VISUALIZERS_OF)}, got default_scope={self.scope!r}')
        cfg = copy.deepcopy(cfg)
        install_checkpoint_loaders(unsafe_load)
        self.amp = amp and check_amp(amp, torch.device(device).type)
        self.score_thr: ScoreThr = SCORE_THR
        loaded = {} if checkpoint is None else load_from_file_or_address(checkpoint)
        with self.in_scope():
            self.meta = _read_meta(loaded, cfg)
            self.model: Any = _build_model(cfg, checkpoint, loaded, allow_missing)
            if checkpoint is not None:
                require_class_count(cfg, self.meta['classes'], checkpoint)
            self.model.to(device).eval()
            if precision or torch.device(device).type == 'cpu':
                accelerate(self.model, precision=precision)
            file_steps, pixel_steps = _split_pipeline(cfg)
            self._file_pipeline = Compose(file_steps)
            self.is_dropping_bits = any(map(drops_bits, self._file_pipeline.transforms))
            # The loading step is in both: it reads a file there, and converts the colours of pixels here
            loading_step = file_steps[-1] if file_steps and file_steps[-1]['type'] == LOADER else dict(type=LOADER)
            self.pipeline = Compose([loading_step, *pixel_steps])
            self.loading_step: LoadPicture = self.pipeline.transforms[0]
            self._description = repr((cfg.model, [*file_steps, *pixel_steps], self.amp, precision))

    @contextmanager
    def in_scope(self) -> Iterator[None]:
        """Enter the scope of the toolbox, which is a setting of the process: threads take turns."""
        with _one_at_a_time, DefaultScope.overwrite_default_scope(self.scope):
            yield

    @contextmanager
    def _forward_context(self) -> Iterator[None]:
        """Enter the scope and the mixed precision of a forward."""
        amp_context = mixed_precision(self.model, self.amp, keep_casts=True) if self.amp else nullcontext()
        with self.in_scope(), amp_context:
            yield

    def read_pixels(self, path: Path) -> NDArray[Any]:
        """Return the pixels of a file, loaded by the config's test pipeline: (H, W) or (H, W, C), BGR as a rule.

        Raises:
            OSError: if the file cannot be read.
        """
        require_complete(path)
        with self.in_scope():
            try:
                item = self._file_pipeline(dict(img_path=str(path), img_id=0))
            except OSError:
                raise
            except Exception as error:  # a decoder raises anything
                raise OSError(f'{path} cannot be read as a picture: {error}') from error
        if item is None or 'img' not in item:
            raise OSError(f'{path} is no picture for the test pipeline')
        pixels: NDArray[Any] = item['img']
        return pixels

    def describe_dropped_bits(self, path: Path) -> str:
        """Return a sentence on bits and bands of a file that `read_pixels` drops; '' for none."""
        return describe_dropped_bits(path) if self.is_dropping_bits else ''

    def preprocess(self, frame: Frame) -> dict[str, Any]:
        """Return a frame as input of the model.

        Raises:
            ValueError: if the test pipeline fails, for example for a picture 1000 times as wide as high.
        """
        try:
            with self.in_scope():
                item = dict(img=frame.pixels, img_path=frame.medium.path and str(frame.medium.path), img_id=0)
                model_input: dict[str, Any] = self.pipeline(item)
                return model_input
        except Exception as error:
            height, width = frame.original_size
            raise ValueError(
                f'{frame.medium.path} of {width}x{height} pixels is no input for the test pipeline: {error}'
            ) from error

    @torch.no_grad()
    def predict(self, model_inputs: Sequence[dict[str, Any]]) -> list[BaseDataElement]:
        """Return the predictions for each frame of a batch."""
        with self._forward_context():
            samples: list[BaseDataElement] = predict_by_shape(self.model.test_step, pseudo_collate(model_inputs))
            return samples

    def require_backbone(self) -> None:
        """Raise ValueError for a model without a backbone, for example an exported model."""
        if not hasattr(self.model, 'backbone'):
            raise ValueError('features take a checkpoint of a model with a backbone: an exported folder gives results')

    def normalise(self, model_input: dict[str, Any]) -> Tensor:
        """Return the normalised and padded image of a frame, (1, C, H, W)."""
        with self.in_scope():
            image_1CHW: Tensor = self.model.data_preprocessor(pseudo_collate([model_input]), False)['inputs']
        return image_1CHW

    @torch.no_grad()
    def compute_features(self, model_input: dict[str, Any]) -> list[NDArray[Any]]:
        """Return the maps of the backbone for a frame, each (C, H, W) float32.

        Raises:
            ValueError: see `require_backbone`.
        """
        self.require_backbone()
        with self._forward_context():
            return [map_1CHW[0].float().cpu().numpy() for map_1CHW in self.model.backbone(self.normalise(model_input))]

    def compute_scores(self, model_input: dict[str, Any]) -> NDArray[Any]:
        """Return a segmentor's scores of a frame, (K, H, W) float32. The largest score decides the class."""
        (sample,) = self.predict([model_input])
        return add_background(sample.seg_logits.data.float().cpu().numpy(), self.binary_threshold)

    @property
    def binary_threshold(self) -> Optional[float]:
        """Return the score from which a pixel has the second class, for a segmentor with a single score."""
        return getattr(getattr(self.model, 'decode_head', None), 'threshold', None)

    def compute_input_size(self, size: Size) -> Size:
        """Return height and width of the model's input for a frame of `size`, before the padding to a multiple."""
        height, width = self.preprocess(make_frame(np.zeros((*size, 3), np.uint8)))['inputs'].shape[-2:]
        return height, width

    @property
    def window_alignment(self) -> int:
        """Return the least common multiple of the windows' sides in pixels; 32 for a backbone of another package.

        A picture that is shifted by a multiple of it has the same windows.
        """
        try:
            windows = find_backbone(self.model).window_size
        except ValueError:
            return 32
        return math.lcm(
            *(stride * side for stride, window in zip(list_strides(self.model), windows) for side in window)
        )

    @property
    def fingerprint(self) -> str:
        """Return a digest of weights, config of the model, and test pipeline."""
        digest = hashlib.sha256(self._description.encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f'{name} {tensor.dtype} {tuple(tensor.shape)}'.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    @cached_property
    def visualizer(self) -> Any:
        """Return the toolbox's visualizer, which all predictors of the toolbox share: mmengine finds it by its name."""
        with self.in_scope():
            return VISUALIZERS.build(dict(type=VISUALIZERS_OF[self.scope], name='infer'))

    def draw(self, frame: Frame, sample: BaseDataElement, score_thr: ScoreThr) -> NDArray[Any]:
        """Return the frame with its predictions drawn, (H, W, 3) uint8 BGR."""
        settings = {}
        if 'pred_instances' in sample:
            objects = sample.pred_instances
            sample = sample.clone()
            thresholds = objects.scores.new_tensor(list_thresholds(score_thr, self.meta['classes']))
            sample.pred_instances = objects[objects.scores >= thresholds[objects.labels]]
            settings = dict(pred_score_thr=0.0)
        pixels = cv2.cvtColor(convert_to_bgr(frame.pixels), cv2.COLOR_BGR2RGB)
        with _one_at_a_time:
            self.visualizer.dataset_meta = self.meta
            if self.scope == 'mmpretrain':
                self.visualizer.visualize_cls(pixels, sample.cpu(), draw_gt=False, name=frame.name)
            else:
                self.visualizer.add_datasample(frame.name, pixels, sample.cpu(), draw_gt=False, **settings)
            drawn: NDArray[np.uint8] = cv2.cvtColor(self.visualizer.get_image(), cv2.COLOR_RGB2BGR)
        return drawn


def add_background(scores_KHW: NDArray[Any], threshold: Optional[float]) -> NDArray[Any]:
    """Return scores whose largest decides the class. A single score, a probability, gets the threshold beside it."""
    if len(scores_KHW) > 1:
        return scores_KHW
    return np.concatenate([np.full_like(scores_KHW, threshold), scores_KHW])


def _build_model(cfg: Config, checkpoint: Optional[str], loaded: dict[str, Any], allow_missing: bool) -> Any:
    """Return the model of a config with the weights of a checkpoint, or the initial weights."""
    if 'data_preprocessor' in cfg:  # as mmpretrain's runner does
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    model: Any = revert_sync_batchnorm(MODELS.build(cfg.model))
    if checkpoint is None:
        model.init_weights()
    else:
        weights = adapt_checkpoint(model, loaded, checkpoint, not allow_missing, ALLOW_MISSING)
        load_state_dict(model, loaded.get('state_dict', loaded) if weights is None else weights, strict=False)
    return model


def _split_pipeline(cfg: Config) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the steps of the test pipeline that load a file, and the steps of pixels; no step loads annotations."""
    use_load_picture(cfg)
    steps = [step for step in find_tested_dataset(cfg).pipeline if not loads_annotations(step)]
    count = next((index + 1 for index, step in enumerate(steps) if loads_picture(step)), 0)
    return steps[:count], steps[count:]


def _read_meta(loaded: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Return classes and colours of the checkpoint or, without them, of the config's data set."""
    meta = read_dataset_meta(loaded)
    if 'classes' not in meta:
        dataset = find_tested_dataset(cfg)
        meta = dict(getattr(find_class(dataset), 'METAINFO', {}), **dataset.get('metainfo', {}))
    if 'classes' not in meta:
        raise ValueError('neither the checkpoint nor the metainfo of the data set in test_dataloader has the classes')
    ids = (loaded.get('meta') or {}).get('category_ids')
    if isinstance(ids, list):
        meta['category_ids'] = ids
    if not meta.get('palette'):
        meta['palette'] = make_palette(len(meta['classes']))
    meta['palette'] = [tuple(colour) for colour in meta['palette']]  # mmdet cannot draw lists
    return meta
