"""What tools/ and `swin_backbone.load` do with a config: train, test, report, predict, export.

`Job` reads a config and the data of a user, and combines both (resolve.py). Everything else takes a job, and changes
copies of its config.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Optional, Union

from mmengine.config import Config
from mmengine.device import get_device

from ..devices import choose_device, keep_freed_memory
from ..openmmlab.config_files import read_config
from ..openmmlab.layers.extension import AccelerateHook
from ..options import DEFAULTS, Options, refuse_options
from ..outputs import REPORT_JSON, lock_folder
from .configs.amp import enable_amp_of_test
from .configs.data_parts import describe_tested_data, require_data
from .configs.initial_weights import find_weights, set_load_from
from .configs.training_settings import refuse_keys_of_options
from .data.annotations import uses_masks
from .data.prepare.config import describe_lost_class_weights
from .data.prepare.user_data import UserData, index_user_data
from .export.predictor import ExportedPredictor, is_exported, use_exported_model
from .predict.predictor import Predictor
from .process import prepare_process
from .resolve import combine, resolve_training
from .resume.checkpoint_hook import remove_leftover_checkpoints
from .runner.build import build_runner, run_loop
from .runner.compile import compile_model
from .runner.hooks.val_loss import ValLossHook
from .runner.launchers import read_rank
from .runner.prediction_outputs import OutputOptions, enable_tta, write_outputs
from .runner.safe_runner import SafeRunner


class Job:
    """A config and the data of a user, read once.

    Args:
        config: a file, `mmdet::...`, `mmseg::...` or `swin_backbone::...`, or a loaded config, which stays unchanged.
        options: the options of the command.

    Attributes:
        cfg: the config of `combine`, without settings of a training.
        options: the options of the command.
        data: the data of the user; None for those of the config.
        is_main_process: this process is the first of the run.

    Raises:
        ValueError: if the config is missing, or an option does not fit the config.
        DataError: for wrong data.
    """

    def __init__(self, config: Union[str, Config], options: Optional[Options] = None) -> None:
        prepare_process()
        self.options = options = options or Options()
        for name, dependent in (('backbone', ('at', 'recipe')), ('data', ('annotations', 'classes'))):
            if getattr(options, name) is None:
                refuse_options(options, dependent, f'needs --{name}, which is missing')
        refuse_keys_of_options(options)
        self.is_main_process = read_rank(options.launcher) == 0
        base = config if isinstance(config, Config) else read_config(config)
        data: Optional[UserData] = None
        if options.data is not None:
            data = index_user_data(
                options.data,
                options.annotations,
                options.classes,
                scope=str(base.get('default_scope')),
                with_masks=uses_masks(base),
                skip_unreadable=options.skip_unreadable,
            )
            self.print_once(*data.lines)
        self.data = data
        self.cfg = combine(base, options, data)
        if data:
            self.print_once(*describe_lost_class_weights(base, self.cfg))

    def print_once(self, *lines: str) -> None:
        """Print lines in the first process of a run."""
        if any(lines) and self.is_main_process:
            print(*filter(None, lines), sep='\n', flush=True)

    def build_training(self) -> SafeRunner:
        """Return the runner of a training: see `resolve_training`.

        Raises:
            ValueError: for an error in the config or the data, or another `device` than mmengine's.
        """
        _require_default_device(self.options, 'training')
        require_data(self.cfg, ('train', 'val'))
        cfg, datasets, changes = resolve_training(self.cfg, self.options, self.data)
        self.print_once(*changes)
        return build_runner(cfg, self.options, [ValLossHook()] if self.options.val_loss else [], datasets=datasets)


@contextmanager
def open_training(job: Job) -> Iterator[SafeRunner]:
    """Yield the runner of a training, alone in its working folder: two would mix their checkpoints.

    Raises:
        ValueError: see `Job.build_training`.
        FolderInUse: if another process trains in the folder, naming the process.
    """
    lock = lock_folder(job.cfg.work_dir, 'trains in', 'training') if job.is_main_process else nullcontext()
    with lock:  # taken before the first files are written: log and config
        if job.is_main_process:
            remove_leftover_checkpoints(job.cfg.work_dir)
        yield job.build_training()


@contextmanager
def open_test(job: Job, checkpoint: str, outputs: Optional[OutputOptions] = None) -> Iterator[SafeRunner]:
    """Yield the runner of a test, of a copy of `job.cfg`. Its outputs move to their places at the end.

    Args:
        checkpoint: path, URL or published name of the whole model, or an exported folder, with `device` and `threads`
            of the options.
        outputs: what is drawn and written.

    Raises:
        ValueError: for an error in the checkpoint, the config or the data.
        FileExistsError: if an output exists.
    """
    cfg = copy.deepcopy(job.cfg)
    options = job.options
    outputs = outputs or OutputOptions()
    if is_exported(checkpoint):
        _refuse_checkpoint_options(options, checkpoint)
        if outputs.tta:
            raise ValueError('--tta takes a checkpoint: an exported model sees each picture once')
        use_exported_model(cfg, checkpoint, options.device or 'cpu', options.threads)
    else:
        _refuse_threads(options)
        _require_default_device(options, 'test')
        set_load_from(cfg, find_weights(checkpoint))
    require_data(cfg, ('test',))
    if options.amp:
        enable_amp_of_test(cfg, options.amp)
    if outputs.tta:
        enable_tta(cfg)
    job.print_once(f'tested on {describe_tested_data(cfg)}')
    inputs = [checkpoint, *filter(None, [cfg.filename])]
    with write_outputs(cfg, outputs, inputs, is_main_process=job.is_main_process) as hooks:
        if options.precision:
            hooks.append(AccelerateHook(options.precision))
        yield build_runner(cfg, options, hooks, not options.allow_missing)


def test(job: Job, checkpoint: str) -> dict[str, float]:
    """Return the metrics of a test. Arguments and errors: see `open_test` and `run_loop`."""
    with open_test(job, checkpoint) as runner:
        metrics: dict[str, float] = run_loop(runner, 'test')
    return metrics


def report(
    job: Job,
    checkpoint: str,
    out_dir: Union[str, Path],
    compare: Sequence[Union[str, Path]] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Test, and write a page on what the model gets wrong.

    Args:
        checkpoint: see `open_test`.
        out_dir, compare, overwrite: see `report_on_test`, also for the returned figures and errors.
    """
    from .report.collect import add_coco_metric, report_on_test  # needs the extra `pictures`

    job = copy.copy(job)
    job.cfg = copy.deepcopy(job.cfg)
    add_coco_metric(job.cfg)
    with open_test(job, checkpoint) as runner:
        figures = report_on_test(runner, out_dir, checkpoint, compare, overwrite)
    best = figures.get('best')
    if best and best['F1']:  # a detector that finds something
        path = Path(out_dir, REPORT_JSON)
        job.print_once(f'best threshold {best["threshold"]:g}; for the best of each class: --score-thr {path}')
    return figures


def open_predictor(job: Job, checkpoint: Optional[str]) -> Predictor:
    """Return a predictor of single pictures. It needs no data.

    Args:
        checkpoint: path, URL or published name of a whole model, or an exported folder; None: initial weights.

    Raises:
        ValueError: if config and checkpoint do not fit each other.
    """
    options = job.options
    if checkpoint is not None and is_exported(checkpoint):
        return open_exported(checkpoint, options)
    _refuse_threads(options)
    device = options.device or choose_device()
    if device.partition(':')[0] == 'cpu':
        keep_freed_memory()
    predictor = Predictor(
        job.cfg,
        checkpoint and find_weights(checkpoint),
        device,
        unsafe_load=options.unsafe_load,
        allow_missing=options.allow_missing,
        amp=options.amp,
        precision=options.precision,
    )
    if options.compile:
        compile_model(predictor.model)
    return predictor


def open_exported(folder: str, options: Options) -> ExportedPredictor:
    """Return the predictor of an exported folder.

    Args:
        options: `device` and `threads`: see `ExportedPredictor`. Default device: the CPU.

    Raises:
        ValueError: for an option of a checkpoint, as `amp`, or of a config, as `backbone`.
        RuntimeProblem: if the folder's files cannot be read or run here.
    """
    _refuse_checkpoint_options(options, folder)
    names = [name for name in DEFAULTS if name not in ('device', 'threads', 'skip_unreadable')]
    refuse_options(options, names, f'takes a config, got the exported folder {folder}')
    device = options.device or 'cpu'
    if device.partition(':')[0] == 'cpu':
        keep_freed_memory()
    return ExportedPredictor(folder, device, options.threads)


def export(job: Job, checkpoint: str, out: Path, format: str = 'onnx', **settings: Any) -> dict[str, Any]:
    """Write a folder that runs without torch. Arguments and errors: see `export_model`, and `find_weights`."""
    from .export.export import export_model

    return export_model(job.cfg, find_weights(checkpoint), out, format, unsafe_load=job.options.unsafe_load, **settings)


def _refuse_checkpoint_options(options: Options, folder: str) -> None:
    reason = f'takes a checkpoint, got the exported folder {folder}, which has its own weights and precision'
    refuse_options(options, ('amp', 'precision', 'compile', 'allow_missing', 'unsafe_load'), reason)


def _require_default_device(options: Options, what: str) -> None:
    device = get_device()
    if options.device not in (None, device, f'{device}:0'):
        raise ValueError(f'a {what} runs on {device}: CUDA_VISIBLE_DEVICES chooses another, got {options.device}')


def _refuse_threads(options: Options) -> None:
    reason = 'takes an exported model: for a checkpoint, set the variable OMP_NUM_THREADS'
    refuse_options(options, ('threads',), reason)
