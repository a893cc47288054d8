"""A test: its outputs (pictures, label maps, predictions), and test-time augmentation."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import METRICS, DefaultScope
from mmengine.runner import Runner

from ...checks import DataError
from ...openmmlab.config_parts import find_class, type_name
from ...outputs import check_outputs, claim_folder
from ...whole_files import make_temporary_name
from ..configs.data_parts import find_annotation_file, find_tested_dataset, list_dataset_configs, list_metric_configs
from ..pictures.colours import encode_labels, make_palette


@dataclass(frozen=True)
class OutputOptions:
    """What a test draws and writes.

    Args:
        tta: augment pictures: see `enable_tta`.
        show: draw predictions in a window, for `wait_time` seconds each.
        show_dir: folder of the drawn pictures.
        out: a .pkl file for the predictions; for a segmentor, a folder of label PNGs; for a detector also F.json, see
            `write_coco_results`.
        first_label: value of the first class in label PNGs.
        overwrite: replace existing files.
    """

    tta: bool = False
    show: bool = False
    wait_time: float = 2
    show_dir: Optional[str] = None
    out: Optional[str] = None
    first_label: int = 0
    overwrite: bool = False


@contextmanager
def write_outputs(
    cfg: Config, outputs: OutputOptions, inputs: Sequence[str], is_main_process: bool = True
) -> Iterator[list[Hook]]:
    """Let a config write the outputs of a test, and yield further hooks. Outputs move to their final paths at the end.

    Args:
        inputs: files that no output may replace.
        is_main_process: this process is rank 0 of the run, which marks folders.

    Raises:
        FileExistsError: if an output exists. See `check_outputs`.
    """
    is_segmentor = cfg.get('default_scope') == 'mmseg'
    hooks = []
    with ExitStack() as stack:

        def claim(path: str) -> Path:
            if is_main_process:
                claim_folder(path, outputs.overwrite)
            return stack.enter_context(collect_files(Path(path)))

        show_dir = str(claim(outputs.show_dir)) if outputs.show_dir else None
        if outputs.show or show_dir:
            enable_drawing(cfg, outputs.show, show_dir, outputs.wait_time)
        if show_dir and cfg.get('default_scope') == 'mmdet':
            hooks.append(UniqueFileNamesHook(with_suffix=True))
        if outputs.out and is_segmentor:
            hooks += [UniqueFileNamesHook(with_suffix=False), WriteLabelsHook(claim(outputs.out), outputs.first_label)]
        elif outputs.out:
            out = Path(outputs.out)
            is_coco = out.suffix == '.json' and cfg.get('default_scope') == 'mmdet'
            nodes = [*list_dataset_configs(cfg, 'test'), *list_metric_configs(cfg, 'test')]
            annotation_files = [find_annotation_file(node) for _, node in nodes]
            paths = [out.with_suffix(f'.{kind}.json') for kind in ('segm', 'panoptic')] if is_coco else []
            check_outputs(out, *paths, inputs=[*inputs, *filter(None, annotation_files)], overwrite=outputs.overwrite)
            temporary = stack.enter_context(collect_files(out.parent)) / out.name
            if is_coco:
                write_coco_results(cfg, temporary.with_suffix(''))
                stack.callback(_rename, temporary.with_suffix('.bbox.json'), temporary)
            else:
                dump = 'DumpResults' if cfg.get('default_scope') == 'mmpretrain' else 'mmdet.DumpDetResults'
                cfg.test_evaluator = [cfg.test_evaluator, dict(type=dump, out_file_path=str(temporary))]
        yield hooks


@contextmanager
def collect_files(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for a toolbox, and move its files to `folder` at the end.

    Each process of a run has a folder of its own. If the sampler gives a picture to two processes, the file of one
    stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=make_temporary_name(folder).name, dir=folder) as temporary:
        try:
            yield Path(temporary)
        finally:
            for path in sorted(Path(temporary).rglob('*')):
                target = folder / path.relative_to(temporary)
                if path.is_dir():
                    target.mkdir(exist_ok=True)
                else:
                    path.replace(target)


def enable_drawing(cfg: Config, show: bool, show_dir: Optional[str], wait_time: float) -> None:
    """Draw predictions on every tested picture, in a window or into `show_dir`.

    Raises:
        ValueError: if the config has no visualization hook.
    """
    hook = cfg.get('default_hooks', {}).get('visualization')
    scope = cfg.get('default_scope')
    if hook is None:
        raise ValueError(
            "--show and --show-dir need default_hooks=dict(visualization=dict(type='DetVisualizationHook')), "
            "'SegVisualizationHook' or, of mmpretrain, 'VisualizationHook', in the config"
        )
    hook.update({'enable' if scope == 'mmpretrain' else 'draw': True, 'interval': 1})
    if show:
        hook.update(show=True, wait_time=wait_time)
    if show_dir:
        show_dir = str(Path(show_dir).absolute())  # mmdet's hook puts relative paths below the working folder
        if scope == 'mmseg':
            cfg.visualizer.save_dir = show_dir
        elif scope == 'mmpretrain':
            hook.out_dir = show_dir
        else:
            hook.test_out_dir = show_dir


def enable_tta(cfg: Config) -> None:
    """Test with the config's tta_model and tta_pipeline. Without these, a detector or classifier sees flipped pictures.

    `MaskTTAModel` replaces mmdet's DetTTAModel, which stops at masks.

    Raises:
        ValueError: for a segmentor without tta_model and tta_pipeline.
    """
    scope = cfg.get('default_scope')
    if 'tta_pipeline' not in cfg or 'tta_model' not in cfg:
        if scope not in ('mmdet', 'mmpretrain'):
            raise ValueError('--tta needs tta_model and tta_pipeline in the config')
        pipeline = find_tested_dataset(cfg).pipeline
        pack = dict(pipeline[-1])
        if scope == 'mmdet':
            pack['meta_keys'] = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
            pack['meta_keys'] += ('flip', 'flip_direction')
        flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
        augmentation = dict(type='TestTimeAug', transforms=[flips, [pack]])
        cfg.tta_pipeline = [*pipeline[:-1], augmentation]
        nms = dict(type='nms', iou_threshold=0.5)
        cfg.tta_model = (
            dict(type='DetTTAModel', tta_cfg=dict(nms=nms, max_per_img=100))
            if scope == 'mmdet'
            else dict(type='AverageClsScoreTTA')
        )
    if type_name(cfg.tta_model) == 'DetTTAModel':
        from .tta import MaskTTAModel  # imports mmdet

        cfg.tta_model.type = MaskTTAModel.__name__
    cfg.model = dict(cfg.tta_model, module=cfg.model)
    for _, dataset in list_dataset_configs(cfg, 'test'):
        dataset['pipeline'] = cfg.tta_pipeline


def write_coco_results(cfg: Config, prefix: Path) -> None:
    """Write the predictions of a test in COCO's format, with the ids of the test data: boxes to PREFIX.bbox.json.

    Masks are in PREFIX.segm.json; segments of a panoptic model are in PREFIX.panoptic.json and the PNGs of
    PREFIX.panoptic/.

    Raises:
        ValueError: if no metric of the config writes COCO's format.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        writers = ('results2json', 'result2json')  # mmdet's, the second of CocoPanopticMetric
        metrics = [
            metric
            for _, metric in list_metric_configs(cfg, 'test')
            if set(writers) & set(dir(find_class(metric, METRICS)))
        ]
    if not metrics:
        raise ValueError('--out F.json takes a config with CocoMetric, LVISMetric or CocoPanopticMetric for the test')
    for metric in metrics:
        metric['outfile_prefix'] = str(prefix)


def _rename(path: Path, target: Path) -> None:
    if path.exists():
        path.replace(target)


class UniqueFileNamesHook(Hook):
    """Stop a test whose pictures have equal names, by which the toolboxes name their files.

    Args:
        with_suffix: the names of files have the suffix of the picture.
    """

    def __init__(self, with_suffix: bool):
        self.with_suffix = with_suffix

    def before_test(self, runner: Runner) -> None:
        """See `Hook`. Raises DataError with two pictures of one name."""
        dataset = runner.test_dataloader.dataset
        pictures: dict[str, str] = {}
        for index in range(len(dataset)):
            path = dataset.get_data_info(index)['img_path']
            name = Path(path).name if self.with_suffix else Path(path).stem
            other = pictures.setdefault(name.casefold(), path)
            if other != path:
                raise DataError(f'{other} and {path} would be written to one file')


class WriteLabelsHook(Hook):
    """Write a segmentor's predictions of a test as PNGs, as tools/infer.py.

    Args:
        folder: folder of the files.
        first_label: value of the first class.
    """

    def __init__(self, folder: Path, first_label: int = 0):
        self.folder, self.first_label = folder, first_label

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        meta = dict(runner.test_loop.dataloader.dataset.metainfo)
        meta['palette'] = meta.get('palette') or make_palette(len(meta['classes']))
        for sample in outputs:
            labels = sample.pred_sem_seg.data[0].cpu().numpy()
            path = self.folder / f'{Path(sample.img_path).stem}.png'
            path.write_bytes(encode_labels(labels, meta, self.first_label))
