"""Draw and evaluate an exported model with the toolboxes."""

import copy
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from numpy.typing import NDArray

from ...checks import DataError
from ...options import Options
from ...sizes import Size
from ..configs.class_counts import find_class_names, require_class_count
from ..configs.data_parts import list_dataset_configs, require_data
from ..configs.initial_weights import set_load_from
from ..data.load_picture import LoadPicture, drops_bits
from ..data.media import Frame, require_complete
from ..pictures.colours import make_palette
from ..predict.predictor import Predictor, add_background
from ..predict.thresholds import SCORE_THR
from ..runner.build import build_runner
from ..weights.completeness import compare_class_names
from .picture import load_bands
from .runtime import MANIFEST, Result, RuntimeModel, RuntimeProblem, compute_resized_size


def is_exported(path: str) -> bool:
    """Return whether `path` is a folder of tools/export.py."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def find_scope(manifest: Mapping[str, Any]) -> str:
    """Return the toolbox of an exported model, by the contents of its deploy.json."""
    return 'mmseg' if manifest['task'] == 'segmentation' else 'mmdet'


class ExportedPredictor(Predictor):
    """`Predictor` for an exported model, a `RuntimeModel`.

    Without a config and a torch module, it has no `pipeline`, `normalise`, `compute_features` and `binary_threshold`.

    Args:
        folder: the folder of an exported whole model.
        device, threads: see `runtime.RuntimeModel`.

    Raises:
        RuntimeProblem: see `runtime.RuntimeModel`.
    """

    def __init__(self, folder: str, device: str = 'cpu', threads: Optional[int] = None):
        # without super().__init__, which builds a torch module from a config
        self.model: Any = RuntimeModel(folder, device, threads)
        manifest = self.model.manifest
        self.scope = find_scope(manifest)
        self.loading_step = LoadPicture(**manifest['preprocessing'].get('load', {}))
        self.is_dropping_bits = drops_bits(self.loading_step)
        stored = manifest.get('score_thr')
        self.score_thr = SCORE_THR if stored is None else stored
        palette = manifest.get('palette') or make_palette(len(self.model.classes))
        self.meta = dict(classes=self.model.classes, palette=list(map(tuple, palette)))  # mmdet cannot draw lists
        self.meta['category_ids'] = manifest.get('category_ids', ())

    def read_pixels(self, path: Path) -> NDArray[Any]:
        """Return the pixels of a file for the model. Raises OSError if the file cannot be read."""
        require_complete(path)
        return self.loading_step.read(str(path))

    def preprocess(self, frame: Frame) -> dict[str, Any]:
        """Return the model's input for a frame: the pixels.

        Raises:
            ValueError: for an unsuitable frame.
        """
        pixels = np.atleast_3d(self.loading_step.convert_colours(frame.pixels))
        try:
            self.model.require_picture(pixels)
        except RuntimeProblem as error:
            raise ValueError(f'{frame.medium.path}: {error}') from error
        return dict(inputs=pixels)

    def predict(self, model_inputs: Sequence[dict[str, Any]]) -> list[BaseDataElement]:
        """Return the results of a batch of frames."""
        results = self.model.predict([item['inputs'] for item in model_inputs], len(model_inputs))
        return [put_result(BaseDataElement(), result) for result in results]

    def compute_scores(self, model_input: dict[str, Any]) -> NDArray[Any]:
        """See `Predictor.compute_scores`."""
        (result,) = self.model.predict([model_input['inputs']], logits=True)
        return add_background(result['logits'].astype(np.float32), self.model.manifest.get('threshold'))

    def compute_input_size(self, size: Size) -> Size:
        """See `Predictor.compute_input_size`."""
        return compute_resized_size(size, self.model.manifest['preprocessing']['resize'])

    @property
    def window_alignment(self) -> int:
        """See `Predictor.window_alignment`: `period` of deploy.json, or 1 without it."""
        return int(self.model.manifest.get('period', 1))

    @property
    def fingerprint(self) -> str:
        """See `Predictor.fingerprint`."""
        names = ('sha256', 'precision', 'preprocessing', 'classes')
        description = json.dumps([self.model.manifest[name] for name in names], sort_keys=True)
        return hashlib.sha256(description.encode()).hexdigest()


class ExportedModel(BaseModel):
    """An exported model for mmengine's test loop. It reads the pictures of a batch again, and ignores its inputs.

    Args:
        folder, device, threads: see `runtime.RuntimeModel`.
    """

    def __init__(self, folder: str, device: str = 'cpu', threads: Optional[int] = None):
        super().__init__()
        self.runtime = RuntimeModel(folder, device, threads)
        self.load_settings = self.runtime.manifest['preprocessing'].get('load', {})

    def test_step(self, batch: dict[str, Any]) -> list[BaseDataElement]:
        """Return the samples of a batch with their results.

        Raises:
            DataError: for an unreadable or unsuitable picture.
        """
        samples: list[BaseDataElement] = batch['data_samples']
        for sample in samples:
            try:
                (result,) = self.runtime.predict([load_bands(sample.img_path, self.load_settings)])
            except (OSError, RuntimeProblem) as error:
                raise DataError(f'{sample.img_path}: {error}') from error
            put_result(sample, result)
            for name, instances in sample.items():  # hooks and metrics take tensors, which mmdet's preprocessor makes
                if isinstance(instances, InstanceData) and hasattr(instances.get('bboxes'), 'tensor'):
                    sample.get(name).bboxes = instances.bboxes.tensor
        return samples

    def forward(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError('an exported model is tested, and not trained')


def use_exported_model(cfg: Config, folder: str, device: str = 'cpu', threads: Optional[int] = None) -> None:
    """Put an exported model in the place of a config's model, to be tested with the config's data and metric."""
    manifest = RuntimeModel(folder, device, threads).manifest  # raises errors before the data are read
    scope = find_scope(manifest)
    if scope != cfg.get('default_scope', scope):
        raise ValueError(f'{folder} holds a model of {scope}, and the config has default_scope={cfg.default_scope!r}')
    classes = manifest.get('classes', ())
    require_class_count(cfg, classes, folder)
    with DefaultScope.overwrite_default_scope(scope):
        tested = [find_class_names(dataset) for _, dataset in list_dataset_configs(cfg, 'test')]
    for names in tested:
        if warning := compare_class_names(classes, names, folder):
            warnings.warn(warning, stacklevel=2)
    cfg.model = dict(type=ExportedModel, folder=folder, device=device, threads=threads)
    set_load_from(cfg, None)


def evaluate_folder(cfg: Config, folder: Path) -> dict[str, float]:
    """Return the metric of an exported model on a config's test set; empty: no test set."""
    cfg = copy.deepcopy(cfg)
    try:
        require_data(cfg, ('test',))
    except (ValueError, OSError):
        return {}
    use_exported_model(cfg, str(folder))
    with tempfile.TemporaryDirectory() as work_dir:
        cfg.update(launcher='none', work_dir=work_dir, experiment_name=Path(work_dir).name, log_level='WARNING')
        cfg.update(train_dataloader=None, train_cfg=None, optim_wrapper=None, param_scheduler=None)
        cfg.update(val_dataloader=None, val_cfg=None, val_evaluator=None)
        # Persistent workers stay alive after the only pass, and Python waits 5 s for each collected worker.
        cfg.test_dataloader.persistent_workers = False
        cfg.update(visualizer=None)  # a named visualizer of the process always writes to the first work_dir
        return {name: float(value) for name, value in build_runner(cfg, Options()).test().items()}


def put_result(sample: BaseDataElement, result: Result) -> BaseDataElement:
    """Put a result into a sample of a toolbox, and return the sample."""
    if 'boxes' in result:
        tensors = {name: torch.from_numpy(value) for name, value in result.items()}
        sample.pred_instances = InstanceData(bboxes=tensors.pop('boxes'), **tensors)
    else:
        sample.pred_sem_seg = PixelData(data=torch.from_numpy(result['labels'].astype(np.int64))[None])
    return sample
