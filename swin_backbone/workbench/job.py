"""A config with the options of a command: what tools/ and `swin_backbone.load` train, test, predict with and export.

A job reads the config and the data of a user, resolves both once (resolve.py), and builds data sets and runners.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Optional, Union

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.utils import import_modules_from_strings

from ..acceleration import accelerate
from ..devices import default_device, keep_freed_memory
from ..openmmlab.config_files import read_config
from ..openmmlab.layers.accelerate import AccelerateHook
from ..openmmlab.layers.compile import compile_model
from ..openmmlab.swap.diff import summarize
from .configs.amp import enable_amp, enable_amp_of_test
from .configs.paths import require_data, tested_set
from .configs.published import find_weights, start_from, start_from_weights
from .configs.training_settings import TrainingSettings, lr_line
from .data.annotations import uses_masks
from .data.balance import Counted, count
from .data.check_data import Report, check_before_training, check_data
from .data.datasets import DataSets
from .data.own_data.config import weights_left_out
from .data.own_data.prepare import prepare
from .export.predictor import ExportedPredictor, is_exported, set_exported
from .predict.predictor import Predictor
from .process import prepare_process
from .resolve import Swap, combine, set_training
from .runner.build import build_runner, run
from .runner.launchers import processes, rank
from .runner.monitor import ValLossHook
from .runner.safe_runner import SafeRunner
from .runner.testing import OutputOptions, enable_tta, write_outputs


@dataclass(frozen=True)
class Options:
    """Options of a command. Docs: docs/reference/tools.md.

    Args:
        backbone, at, recipe: see `swap_backbone`; None keeps the config's backbone.
        data: pictures of the user with annotations, in place of the config's; see `prepare`.
        annotations: file or folder of the annotations, if they are not below `data`.
        classes: their names, if no file below `data` has them.
        cfg_options: values by dotted keys; see `apply_options`.
        work_dir: folder of logs and checkpoints. Default: the config's, or work_dirs/ and the config's name.
        settings: settings of a training.
        amp: mixed precision of this dtype; None: float32.
        precision: 'int8': tests and predictions in eight bits; see `accelerate`.
        compile: compile backbone and neck.
        val_loss: compute the losses on the validation set too, at each validation of a training.
        unsafe_load: let pickles in checkpoints run code.
        skip_unreadable: continue without unreadable pictures.
        allow_missing: accept a checkpoint without some weights of the model.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.
    """

    backbone: Optional[str] = None
    at: Optional[str] = None
    recipe: str = 'swin'
    data: Optional[Union[str, Path]] = None
    annotations: Optional[Union[str, Path]] = None
    classes: Optional[Sequence[str]] = None
    cfg_options: dict[str, Any] = field(default_factory=dict)
    work_dir: Optional[str] = None
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    amp: Optional[str] = None
    precision: Optional[str] = None
    compile: bool = False
    val_loss: bool = False
    unsafe_load: bool = False
    skip_unreadable: bool = False
    allow_missing: bool = False
    launcher: str = 'none'


class Job:
    """A config with options.

    Args:
        config: a file, `mmdet::...`, `mmseg::...` or `swin_backbone::...`, or a loaded config, which stays unchanged.
        options: of the command.

    Attributes:
        cfg: the resolved config.
        data: of the user; None for those of the config.
        datasets: the data sets of the config.

    Raises:
        ValueError: if the config is missing, or an option does not fit the config.
        DataError: for wrong data.
    """

    def __init__(self, config: Union[str, Config], options: Optional[Options] = None):
        prepare_process()
        self.options = options = options or Options()
        if options.at and not options.backbone:
            raise ValueError(f'--at {options.at} needs --backbone, which is missing')
        for name in ('annotations', 'classes'):
            if getattr(options, name) is not None and options.data is None:
                raise ValueError(f'--{name} {getattr(options, name)} needs --data, which is missing')
        if options.precision and options.compile:
            raise ValueError('--precision int8 excludes --compile: torch computes compiled layers, in float32')
        rank(options.launcher)  # an error for a process of no launcher
        read = config if isinstance(config, Config) else read_config(config)
        self.data = None
        if options.data is not None:
            scope, with_masks = str(read.get('default_scope')), uses_masks(read)
            self.data = prepare(
                options.data,
                options.annotations,
                options.classes,
                scope=scope,
                with_masks=with_masks,
                skip_unreadable=options.skip_unreadable,
            )
            self.print(*self.data.lines)
        swap = Swap(options.backbone, options.at, options.recipe) if options.backbone else None
        self._combined = combine(read, swap, self.data, options.cfg_options)
        if any(key.lstrip('+').startswith('custom_imports') for key in options.cfg_options):
            # mmengine imports only the modules in the file
            import_modules_from_strings(**self._combined.custom_imports)
        if self.data:
            self.print(*weights_left_out(read, self._combined))
        self.cfg, self._line = self._with_settings(), ''
        self.datasets = DataSets(self.cfg)
        if options.settings.epochs is not None or options.settings.balance:
            counted = count(self.datasets, options.settings.balance)
            self.cfg, self._line = self._with_settings(counted), counted.line
            self.datasets.cfg = self.cfg
        source = config.filename or 'config' if isinstance(config, Config) else config
        name = Path(source.replace('::', '/')).stem + (f'_{options.backbone}' if options.backbone else '')
        self.cfg.work_dir = options.work_dir or self.cfg.get('work_dir') or str(Path('work_dirs') / name)
        self.cfg.launcher = options.launcher

    def _with_settings(self, counted: Optional[Counted] = None) -> Config:
        options = self.options
        number = 1 if options.settings == TrainingSettings() and not self.data else processes(options.launcher)
        return set_training(self._combined, self.data, options.settings, options.cfg_options, counted, number)

    def print_settings(self) -> None:
        """Print what the settings of a training change in the config."""
        settings, lines = self.options.settings, [self._line]
        if settings == TrainingSettings() and not self.data:
            return
        if not settings.auto_scale_lr and (settings.batch is not None or self.data):
            lines.append(lr_line(self.cfg, processes(self.options.launcher)))
        before = copy.deepcopy(self._combined)
        before.update(work_dir=self.cfg.work_dir, launcher=self.cfg.launcher)
        changes = summarize(before, self.cfg)
        self.print(*lines, f'changed settings:\n{changes}' if changes else '')

    def build_training(self, weights: Optional[str] = None, resume: Optional[str] = None) -> SafeRunner:
        """Return the runner of a training, after a check of the data.

        Args:
            weights: path, URL or published name of the first weights of the whole model.
            resume: checkpoint to continue from, or 'auto' for the last one in the working folder; excludes `weights`.

        Raises:
            ValueError: for an error in the config or the data.
        """
        self.print_settings()
        if self.options.amp:
            enable_amp(self.cfg, self.options.amp)
        if weights is not None:
            start_from_weights(self.cfg, weights)
        if resume is not None:
            self.cfg.update(resume=True, load_from=None if resume == 'auto' else resume)
        require_data(self.cfg, ('train', 'val'))
        if self.data and not rank(self.options.launcher):
            check_before_training(self.datasets, self.options.skip_unreadable)
        return self._build_runner(hooks=[ValLossHook()] if self.options.val_loss else [])

    def train(self, weights: Optional[str] = None, resume: Optional[str] = None) -> SafeRunner:
        """Train. Arguments and errors: see `build_training` and `run`."""
        runner = self.build_training(weights, resume)
        run(runner, 'train')
        return runner

    @contextmanager
    def build_test(
        self,
        checkpoint: str,
        outputs: Optional[OutputOptions] = None,
        device: str = 'cpu',
        threads: Optional[int] = None,
    ) -> Iterator[SafeRunner]:
        """Yield the runner of a test. Its outputs move to their places at the end.

        Args:
            checkpoint: path or URL of the whole model, or an exported folder.
            outputs: what is drawn and written.
            device, threads: of an exported model.

        Raises:
            ValueError: for an error in the checkpoint, the config or the data.
            FileExistsError: if an output exists.
        """
        cfg, options, outputs = self.cfg, self.options, outputs or OutputOptions()
        if is_exported(checkpoint):
            _require_checkpoint_options(options.amp, options.compile, options.precision)
            if outputs.tta:
                raise ValueError('--tta takes a checkpoint: an exported model sees each picture once')
            set_exported(cfg, checkpoint, device, threads)
        else:
            start_from(cfg, checkpoint)
        if options.amp:
            enable_amp_of_test(cfg, options.amp)
        if outputs.tta:
            enable_tta(cfg)
        require_data(cfg, ('test',))
        self.print(f'tested on {tested_set(cfg)}')
        inputs = [checkpoint, *filter(None, [cfg.filename])]
        with write_outputs(cfg, outputs, inputs, is_first=not rank(options.launcher)) as hooks:
            if options.precision:
                hooks.append(AccelerateHook(options.precision))
            yield self._build_runner(not options.allow_missing, hooks)

    def test(self, checkpoint: str, **settings: Any) -> dict[str, float]:
        """Return the metrics of a test. Arguments and errors: see `build_test` and `run`."""
        with self.build_test(checkpoint, **settings) as runner:
            metrics: dict[str, float] = run(runner, 'test')
        return metrics

    def report(
        self,
        checkpoint: str,
        out_dir: Union[str, Path],
        compare: Sequence[Union[str, Path]] = (),
        overwrite: bool = False,
        **settings: Any,
    ) -> dict[str, Any]:
        """Test, and write a page on what the model gets wrong.

        Args:
            checkpoint, settings: see `build_test`.
            out_dir, compare, overwrite: see `report_on_test`, also for the returned numbers and errors.
        """
        from .report.collect import add_coco_metric, report_on_test  # of pictures

        add_coco_metric(self.cfg)
        with self.build_test(checkpoint, **settings) as runner:
            test = partial(run, runner, 'test')
            report = report_on_test(runner, test, summarize, out_dir, checkpoint, compare, overwrite)
        best = report.get('best')
        if best and best['F1']:  # of a detector that finds something
            path = Path(out_dir, 'report.json')
            self.print(f'best threshold {best["threshold"]:g}; for the best of each class: --score-thr {path}')
        return report

    def open_predictor(
        self, checkpoint: Optional[str], device: Optional[str] = None, threads: Optional[int] = None, batch: int = 1
    ) -> Predictor:
        """Return a predictor of single pictures. It needs no data.

        Args:
            checkpoint: path, URL or published name of a whole model, or an exported folder; None: initial weights.
            device: of torch. Default: the first CUDA device, or the CPU; the CPU for an exported folder.
            threads, batch: of an exported model: see `ExportedPredictor`.

        Raises:
            ValueError: see `Predictor`.
        """
        options = self.options
        if checkpoint is not None and is_exported(checkpoint):
            chosen = options.amp, options.compile, options.precision
            return open_exported(checkpoint, device, threads, batch, *chosen)
        device = device or default_device()
        if device.partition(':')[0] == 'cpu':
            keep_freed_memory()
        predictor = Predictor(
            self.cfg,
            checkpoint and find_weights(checkpoint),
            device,
            options.unsafe_load,
            options.allow_missing,
            options.amp,
            options.precision,
            accelerate,
        )
        if options.compile:
            compile_model(predictor.model)
        return predictor

    def export(self, checkpoint: str, out: Path, format: str = 'onnx', **settings: Any) -> dict[str, Any]:
        """Write a folder that runs without torch. Arguments and errors: see `export.export.export`."""
        from .export.export import export

        settings.update(unsafe_load=self.options.unsafe_load, accelerate=accelerate)
        return export(self.cfg, checkpoint, out, format, **settings)

    def check(self, max_files: int = 2000, seconds: float = 60) -> list[Report]:
        """Return reports on the data. Arguments and errors: see `check_data`."""
        return check_data(DataSets(self.cfg, refused=()), max_files, seconds)

    def _build_runner(self, whole: bool = False, hooks: Sequence[Hook] = ()) -> SafeRunner:
        options = self.options
        runner = build_runner(
            self.cfg,
            options.unsafe_load,
            whole,
            options.skip_unreadable,
            self.datasets,
            accelerate,
            prints_facts=self.data is None,  # else the check before the training has printed these
        )
        if options.compile:
            compile_model(runner.model)
        for hook in hooks:
            runner.register_hook(hook)
        return runner

    def print(self, *lines: str) -> None:
        """Print lines in the first process of a run."""
        if any(lines) and not rank(self.options.launcher):
            print(*filter(None, lines), sep='\n', flush=True)


def open_exported(
    folder: str,
    device: Optional[str] = None,
    threads: Optional[int] = None,
    batch: int = 1,
    amp: Optional[str] = None,
    compile: bool = False,
    precision: Optional[str] = None,
) -> ExportedPredictor:
    """Return the predictor of an exported folder.

    Args:
        device, threads, batch: see `ExportedPredictor`. Default device: the CPU.
        amp, compile, precision: refused: an exported model has the precision of its export.

    Raises:
        ValueError: for these.
        RuntimeProblem: see `ExportedPredictor`.
    """
    _require_checkpoint_options(amp, compile, precision)
    device = device or 'cpu'
    if device.partition(':')[0] == 'cpu':
        keep_freed_memory()
    return ExportedPredictor(folder, device, threads, batch)


def _require_checkpoint_options(*chosen: Any) -> None:
    if any(chosen):
        names = '--amp, --compile and --precision'
        raise ValueError(f'{names} take a checkpoint: an exported model has the precision of its export')
