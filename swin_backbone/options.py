"""The options that tools share. A field of `Options` has the type, default, help and unit of an option.

The command lines, the keywords of `load` and `Model.train`, and docs/reference/options.md in two languages
(docs/write_options.py) are made from these fields.
"""

# ruff: noqa: RUF009, `_option` returns a field of its own for each option

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, Optional, TypeVar, Union

LARGEST_SIDE = 16384  # pixels of a picture
LARGEST = 2**31 - 1  # limit of all numbers in options

PathLike = Union[str, Path]
Function = TypeVar('Function', bound=Callable[..., Any])


def number_from(minimum: float, maximum: float = LARGEST, cls: type = float) -> Callable[[str], Any]:
    """Return the type of an option that takes a number from `minimum` to `maximum`.

    Args:
        cls: float, or int for whole numbers.
    """

    def parse(text: str) -> Any:
        with suppress(ValueError):
            value = cls(text)
            if minimum <= value <= maximum:  # false for NaN
                return value
        words = 'a whole number' if cls is int else 'a number'
        raise argparse.ArgumentTypeError(f'it takes {words} from {minimum} to {maximum}, got {text[:40]!r}')

    return parse


def whole_from(minimum: int, maximum: int = LARGEST) -> Callable[[str], int]:
    return number_from(minimum, maximum, int)


positive = whole_from(1)


def import_package() -> None:
    """Import torch, mmengine and the package, which takes seconds, and prepare the process.

    The types of --cfg-options, --classes and --score-thr call it: they need mmengine and the workbench.
    """
    from swin_backbone.workbench.process import prepare_process

    prepare_process()


def _parse_score_thr(text: str) -> Any:
    """Return a number from 0 to 1, or the thresholds in a report."""
    if not os.path.exists(text):
        with suppress(ValueError):
            float(text)
            return number_from(0, 1)(text)
        raise argparse.ArgumentTypeError(
            f'it takes a number from 0 to 1, or a report.json, and there is no {text[:80]!r}'
        )
    import_package()
    from swin_backbone.workbench.predict.thresholds import read_score_thr

    try:
        return read_score_thr(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition('/')
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f'it takes I/N with I from 0 to N - 1, got {text[:40]!r}')
    return int(index), int(count)


class ShapeAction(argparse.Action):
    """`--shape H [W]`: a tuple of height and width in pixels; one number is a square."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Optional[str] = None
    ) -> None:
        if len(values) > 2:
            parser.error(f'{option} takes height and width, got {len(values)} numbers')
        setattr(namespace, self.dest, (values[0], values[-1]))


class CfgOptionsAction(argparse.Action):
    """`--cfg-options K=V ...`, once or several times: a dict of values by their keys."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Optional[str] = None
    ) -> None:
        import_package()
        from swin_backbone.workbench.configs.cfg_options import parse_options

        try:
            options = parse_options(values)
        except ValueError as error:
            parser.error(str(error))
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **options})


def _parse_names(text: str) -> list[str]:
    import_package()
    from swin_backbone.workbench.configs.cfg_options import parse_value

    names = parse_value(f'[{text.strip().removeprefix("[").removesuffix("]")}]')
    return [str(name) for name in names]


def _option(
    help: str, metavar: Any = None, default: Any = None, see: str = '', models: Sequence[str] = (), **settings: Any
) -> Any:
    """Return a field.

    Args:
        see: page of docs/ that explains the option.
        models: kinds of models that use the option, of `MODEL_KINDS`. Default: all.
        settings: settings of `add_argument`; `other_names` are further names of the option.
    """
    if default is False:
        settings['action'] = 'store_true'
    elif metavar is not None:
        settings['metavar'] = metavar
    settings = dict(help=help, default=default, **settings)
    return field(default=default, metadata=dict(see=see, models=models, settings=settings))


# By scope, mmengine's word for the toolbox of a config
MODEL_KINDS = dict(mmdet='detector', mmseg='segmentor', mmpretrain='classifier')


@dataclass(frozen=True)
class Options:
    """The options of a `Job`, ordered as in every --help, and grouped by the functions that read them.

    None keeps the config's own setting.
    """

    # The config and its data: `Job` and `combine`
    data: Optional[PathLike] = _option(
        'your own pictures and annotations: a folder with a COCO or labelme JSON, YOLO text files, Pascal VOC or CVAT '
        'XML, label PNGs or a folder for each class, or the JSON itself; replaces data sets, classes and metrics of '
        'the config',
        'D',
        see='guides/own_data.md',
    )
    annotations: Optional[PathLike] = _option(
        'with --data: file or folder of annotations outside the folder of pictures', 'A'
    )
    classes: Optional[Sequence[str]] = _option(
        'with --data: names of the classes, as "road,traffic light", if no file below D has them',
        'NAMES',
        type=_parse_names,
    )
    backbone: Optional[str] = _option(
        "put this Swin in place of the config's backbone: swin-t, swinv2-b, ...", 'NAME', see='guides/swap.md'
    )
    at: Optional[str] = _option('with --backbone: the key of the backbone, if the config has several', 'KEY')
    recipe: Optional[str] = _option(
        "with --backbone: the optimizer of the Swin recipe, or the config's own (default: swin)",
        choices=('swin', 'keep'),
    )
    cfg_options: Optional[dict[str, Any]] = _option(
        'override settings of the config: key=value, key="[a,b]" or key=a,b; dots between nested keys; +key=value adds '
        'a new key',
        'K=V',
        nargs='+',
        action=CfgOptionsAction,
    )
    workers: Optional[int] = _option(
        'processes that load pictures; 0 loads in the main process', 'N', type=whole_from(0)
    )
    work_dir: Optional[PathLike] = _option(
        "folder of logs and checkpoints (default: work_dirs/ and the config's name)", 'D'
    )
    launcher: str = _option(
        'what has started the processes of the run', default='none', choices=('none', 'pytorch', 'slurm', 'mpi')
    )

    # A training: `resolve_training`
    epochs: Optional[int] = _option(
        'passes over the training pictures; schedule and validation are adapted', 'N', type=positive
    )
    batch: Optional[int] = _option('pictures per step and process; the learning rate stays', 'N', type=positive)
    shape: Optional[tuple[int, int]] = _option(
        'height and width in pixels; one number is a square',
        ('H', 'W'),
        type=whole_from(1, LARGEST_SIDE),
        nargs='+',
        action=ShapeAction,
    )
    lr: Optional[float] = _option(
        'learning rate; later rates of the schedule scale with it', 'R', type=number_from(1e-12)
    )
    auto_scale_lr: bool = _option(
        'scale the learning rate with the batch; that of the config is for auto_scale_lr.base_batch_size pictures per '
        'step',
        default=False,
    )
    balance: bool = _option(
        "give rare classes more weight: their pictures are repeated; a segmentor's loss is weighted by class",
        default=False,
        see='guides/own_data.md',
    )
    patience: Optional[int] = _option(
        'end the training after N validations without a better metric: that of save_best in the config, or its main '
        'metric',
        'N',
        type=positive,
    )
    seed: Optional[int] = _option(
        'random numbers of the training begin with N (default: other numbers in each training)', 'N', type=whole_from(0)
    )
    weights: Optional[str] = _option(
        'path or URL of a checkpoint, or the name of published weights: docs/measurements/zoo.md',
        'W',
        see='measurements/zoo.md#published-weights',
    )
    resume: Optional[str] = _option(
        'continue from CKPT; without CKPT from the last checkpoint in the working folder',
        'CKPT',
        nargs='?',
        const='auto',
    )
    vis: Optional[str] = _option(
        'write the log for TensorBoard or Weights & Biases too',
        choices=('tensorboard', 'wandb'),
        see='explanation/pictures.md',
    )
    val_loss: bool = _option(
        'compute the losses on the validation set too, at each validation: val_loss',
        default=False,
        see='guides/own_data.md',
    )

    # A model that runs: `build_runner`, `open_test` and `open_predictor`
    amp: Optional[str] = _option(
        'mixed precision; auto, the default, is float16 on a GPU and bfloat16 on a CPU',
        nargs='?',
        const='auto',
        choices=('auto', 'float16', 'bfloat16'),
        see='explanation/mixed_precision.md',
    )
    precision: Optional[str] = _option(
        'let the layers of a Swin multiply in eight bits, on a CPU; also together with --amp',
        choices=('int8',),
        see='explanation/eight_bits.md',
    )
    compile: bool = _option(
        'compile backbone and neck by torch.compile, with free sizes of pictures; on a GPU',
        default=False,
        see='measurements/gpus.md#torchcompile',
    )
    device: Optional[str] = _option(
        'cpu or cuda:0; without it the GPU if there is one, and the CPU for an exported model', 'DEV'
    )
    threads: Optional[int] = _option('threads on a CPU', 'N', type=positive)
    skip_unreadable: bool = _option('skip pictures that cannot be read, and count them', default=False)
    allow_missing: bool = _option('continue if the checkpoint lacks weights; these stay random', default=False)
    unsafe_load: bool = _option('load a checkpoint that can run code; only from an author you trust', default=False)


@dataclass(frozen=True)
class ToolOptions:
    """The options that only tools read, which follow those of a `Job` in every --help."""

    score_thr: Any = _option(
        'leave out boxes with lower scores: 0 to 1, or the report.json of tools/report.py, with a threshold for each '
        'class (default: 0.3)',
        'S',
        type=_parse_score_thr,
        see='guides/report.md',
        models=('detector',),
    )
    first_label: int = _option(
        "value of a segmentor's first class in label PNGs: 0 (default), or 1 as for ADE20K's server and in label files "
        'with reduce_zero_label',
        'N',
        default=0,
        type=whole_from(0, 1),
        see='reference/tools.md#labels-and-ids',
        models=('segmentor',),
    )
    shard: Any = _option('run part I of N, from 0', 'I/N', type=_parse_shard)
    out_dir: Optional[Path] = _option('folder to write', 'D', type=Path)
    out: Optional[Path] = _option('file to write', 'F', type=Path)
    json: Optional[Path] = _option('write the figures to F', 'F', type=Path)
    dpi: int = _option('pixels of a PNG per inch (default: 100)', 'N', default=100, type=whole_from(1, 1000))
    overwrite: bool = _option(
        'replace existing files', default=False, see='reference/tools.md#files-that-are-there-already'
    )
    timeout: float = _option(
        'end a download after S seconds without data (default: 30)', 'S', default=30.0, type=number_from(0.001)
    )
    local_rank: Optional[int] = _option(argparse.SUPPRESS, other_names=['--local_rank'], type=int)
    debug: bool = _option('print the traceback of an error', default=False)
    pictures: Any = _option('pictures', 'P')


OPTION_FIELDS = {option.name: option for option in (*fields(Options), *fields(ToolOptions))}
DEFAULTS = {option.name: option.default for option in fields(Options)}  # the options of a `Job`


def refuse_options(values: object, names: Iterable[str], reason: str, defaults: Mapping[str, Any] = DEFAULTS) -> None:
    """Check that options are not set, which would have no effect.

    Args:
        values: `Options`, or the arguments of a tool.
        names: names of the options.
        reason: end of the error, as 'needs --data, which is missing'.

    Raises:
        ValueError: if one has another value than its default.
    """
    for name in names:
        value = getattr(values, name)
        if value not in (None, defaults[name]):
            shown = '' if value is True else f' {value}'
            raise ValueError(f'{_name_option(name)}{shown} {reason}')


def describe_unused_options(values: Any, scope: Optional[str], *more: str) -> str:
    """Return a line on given options that other kinds of models use; '' without one, or for an unknown scope.

    Args:
        values: the values of a command line.
        scope: the scope of the model's config.
        more: further kinds of `MODEL_KINDS`; a panoptic detector is a segmentor too.
    """
    kind = MODEL_KINDS.get(scope or '')
    unused = [
        _name_option(name)
        for name, option in OPTION_FIELDS.items()
        if option.metadata['models'] and not {kind, *more} & {*option.metadata['models']}
        if getattr(values, name, None) not in (None, option.default)
    ]
    return f'without effect on a {kind}: {", ".join(unused)}' if kind and unused else ''


def _name_option(name: str) -> str:
    return f'--{name.replace("_", "-")}'


# Arguments of several tools, by their names, with the settings of `add_argument`
ARGUMENTS: dict[str, dict[str, Any]] = {
    'image': dict(help='a picture'),
    'config': dict(help='path of a config, or mmdet::..., mmseg::..., swin_backbone::...'),
    'checkpoint': dict(help='path or URL of a checkpoint'),
    **{_name_option(name): option.metadata['settings'] for name, option in OPTION_FIELDS.items()},
}
TRAINING_SETTINGS = 'epochs batch shape lr auto_scale_lr balance patience seed'  # see `resolve_training`


def with_options(names: str) -> Callable[[Function], Function]:
    """Replace `**settings` of a function by parameters of the table, and document them.

    Args:
        names: names of fields, with a space between two. A parameter that the function has gets only its help.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        doc = function.__doc__ or ''
        parameters = {
            name: parameter
            for name, parameter in signature.parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        }
        lines = []
        for name in names.split():
            option = OPTION_FIELDS[name]
            kind = inspect.Parameter.KEYWORD_ONLY
            parameter = inspect.Parameter(name, kind, default=option.default, annotation=option.type)
            parameters.setdefault(name, parameter)
            text = re.sub('--([a-z_-]+)', lambda word: word[1].replace('-', '_'), option.metadata['settings']['help'])
            lines.append(f'{name}: {text}' + '.' * (not text.endswith('.')))
        whole_signature = signature.replace(parameters=list(parameters.values()))

        @wraps(function)
        def checked(*arguments: Any, **settings: Any) -> Any:
            try:
                whole_signature.bind(*arguments, **settings)
            except TypeError as error:  # an unknown name
                raise TypeError(f'{function.__name__}() {error}') from None
            return function(*arguments, **settings)

        indent = ' ' * doc.rpartition('**settings')[0].rpartition('\n')[2].count(' ')  # no doc: `python -OO`
        checked.__doc__ = doc.replace('**settings: see `Options`.', f'\n{indent}'.join(lines))
        checked.__signature__ = whole_signature  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate
