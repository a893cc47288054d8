"""Export a config and a checkpoint to a folder: capture, write, verify, rename."""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Callable, Optional, Union

import cv2
import numpy as np
import torch
from mmengine.config import Config
from numpy.typing import NDArray
from torch import Tensor

from ...checks import check_choice
from ...kernels.native.library import FILE_NAME as LIBRARY
from ...kernels.native.library import library_path
from ...outputs import lock_folder
from ...sizes import Size
from ...version import __version__
from ...whole_files import make_temporary_name, remove_leftovers
from ..data.media import make_frame
from ..predict.predictor import Predictor
from ..predict.thresholds import ScoreThr, choose_score_thr
from . import formats, verify
from .graph import PARTS, ExportError, Graph, build_maps_graph
from .library_nodes import insert_nodes
from .picture import Normalise, fix_size
from .predictor import evaluate_folder
from .quantize import Feed, iter_dataset_pictures, make_feeds, quantize_onnx, quantize_openvino, read_training_pictures
from .runtime import MANIFEST, Result, RuntimeModel, compute_digest, get_openvino_core, read_manifest

MAX_SAMPLES, MAX_TRIED = 2, 8  # pictures of a data set for the verification


def export_model(
    cfg: Config,
    checkpoint: str,
    out: Path,
    format: str = 'onnx',
    part: str = 'model',
    shape: Optional[Size] = None,
    precision: Optional[str] = None,
    pictures: Sequence[NDArray[Any]] = (),
    unsafe_load: bool = False,
    overwrite: bool = False,
    operators: Optional[str] = None,
    texts: Sequence[str] = (),
    score_thr: Union[ScoreThr, str, Path, None] = None,
) -> dict[str, Any]:
    """Write the folder `out` with the verified model and `deploy.json`, in place of an earlier export.

    Args:
        cfg: config of mmdet or mmseg.
        checkpoint: path or URL of the whole model.
        format: a name from `formats.MODEL_FILES`.
        part: 'model', from pixels to result; 'backbone'; or 'neck', the backbone with the neck.
        shape: height and width of the model's input, for batch size 1: see `fix_size`. None: batch, height and
            width stay free.
        precision: a name from `formats.PRECISIONS`. None: the first precision of the format.
        pictures: BGR pixels for verification and for the calibration of int8 without `operators`. Empty: two pictures
            of the test set and generated ones for verification, pictures of the training set for calibration.
        unsafe_load: see `load_checkpoint`.
        overwrite: replace an earlier export also if a user changed its files.
        operators: 'swin' for nodes of the compiled library, which the folder then contains; None: standard operators.
        texts: class names for Grounding DINO. Empty: the classes of the checkpoint or the dataset.
        score_thr: lowest score of an object that the folder predicts, see `choose_score_thr`. None: 0.3.

    Returns:
        The contents of deploy.json.

    Raises:
        ExportError: if the model cannot be exported, or the file and PyTorch disagree.
        ValueError: if the toolbox is unknown, or the checkpoint does not fit.
    """
    precision = formats.check_format(format, precision, operators)
    check_choice('--part', part, PARTS)
    is_calibrated = formats.is_calibrated(precision, operators)
    if shape is not None and (part == 'model' or is_calibrated):
        cfg = fix_size(cfg, shape)
    predictor = Predictor(cfg, checkpoint, 'cpu', unsafe_load=unsafe_load)
    has_text = hasattr(predictor.model, 'language_model')
    if has_text:
        texts = tuple(texts or predictor.meta['classes'])
        predictor.meta = dict(classes=texts)
        pipeline = predictor.pipeline
        predictor.pipeline = lambda item: pipeline({**item, 'text': texts, 'custom_entities': True})
    elif texts:
        raise ExportError(f'--texts needs a model with a language_model, got {type(predictor.model).__name__}')
    graph = build_graph(predictor.model, cfg, part, shape, texts)
    calibration: Sequence[Feed] = ()
    if is_calibrated:
        calibration = make_feeds(pictures or read_training_pictures(cfg), graph, cfg, predictor)
    reference = partial(predict_result, predictor) if part == 'model' else None
    samples = [verify.Sample(f'picture {number} of --pictures', pixels) for number, pixels in enumerate(pictures, 1)]
    if reference and not samples:
        samples = choose_dataset_samples(cfg, 'test', reference)
        if is_calibrated:  # for pictures of this kind, not for generated ones
            samples = samples or choose_dataset_samples(cfg, 'train', reference)
        else:
            samples += generate_samples(graph)
    meta = dict(
        classes=list(predictor.meta['classes']),
        category_ids=list(predictor.meta.get('category_ids', ())),
        score_thr=choose_score_thr(predictor, score_thr) if predictor.scope == 'mmdet' else None,
        palette=[list(map(int, colour)) for colour in predictor.meta.get('palette', ())],
        period=predictor.window_alignment,  # these two are for tiles of large pictures
        threshold=predictor.binary_threshold,
    )
    metric = (lambda folder: evaluate_folder(cfg, folder)) if part == 'model' else lambda folder: {}
    return write_folder(
        graph,
        out,
        format,
        precision,
        meta=meta,
        reference=reference,
        samples=samples,
        calibration=calibration,
        metric=metric,
        overwrite=overwrite,
        operators=operators,
    )


def build_graph(model: Any, cfg: Config, part: str, shape: Optional[Size], texts: Sequence[str] = ()) -> Graph:
    """Return the graph of a whole model or of a part. Arguments and errors: see `export_model`."""
    if part != 'model':
        settings = dict(preprocessing=Normalise(model.data_preprocessor).settings())
        return replace(build_maps_graph(model, part, shape), settings=settings)
    if cfg.default_scope == 'mmseg':
        from .heads.segmentor import build_segmentor_graph

        return build_segmentor_graph(model, cfg, shape)
    from .heads.detector import build_detector_graph

    return build_detector_graph(model, cfg, shape, texts)


def write_folder(
    graph: Graph,
    out: Path,
    format: str,
    precision: str,
    *,
    meta: Optional[dict[str, Any]] = None,
    reference: Optional[Callable[[NDArray[Any]], Result]] = None,
    samples: Sequence[verify.Sample] = (),
    calibration: Sequence[Feed] = (),
    metric: Callable[[Path], dict[str, float]] = lambda folder: {},
    overwrite: bool = False,
    operators: Optional[str] = None,
) -> dict[str, Any]:
    """Capture a graph, write a folder and verify the file: see `export_model`.

    Args:
        reference: PyTorch's result for a picture, for a whole model.
        samples: pictures for the verification of a whole model; empty: generated ones.
        calibration: inputs for int8 without `operators`.
        metric: evaluates the model in a folder; a calibrated manifest has the metric before and after quantization.
    """
    is_calibrated = formats.is_calibrated(precision, operators)
    tolerance_name = f'{precision} by {operators}' if precision == 'int8' and operators else precision
    with replace_folder(out, overwrite) as folder, tempfile.TemporaryDirectory() as scratch:
        fp32_folder = Path(scratch) / 'fp32'
        if is_calibrated:
            write_folder(graph, fp32_folder, format, 'fp32', meta=meta, reference=reference, samples=samples)
            quantize = quantize_openvino if format == 'openvino' else quantize_onnx
            file = formats.MODEL_FILES[format]
            quantize(fp32_folder / file, folder / file, calibration)
        else:
            write_model(graph, folder, format, precision, operators)
        manifest = {**make_manifest(graph, folder, format, precision), **graph.settings, **(meta or {})}
        packages = ('torch', *formats.PACKAGES[format])
        manifest['versions'] = dict(swin_backbone=__version__, **{name: version(name) for name in packages})
        (folder / MANIFEST).write_text(json.dumps(manifest))
        if reference is None:
            images = [feed[0] for feed in calibration[:MAX_SAMPLES]]
            figures = verify.verify_maps(RuntimeModel(folder).run, graph, tolerance_name, images)
        else:
            figures = verify.verify_results(
                RuntimeModel(folder), reference, samples or generate_samples(graph), tolerance_name
            )
        manifest['verification'] = figures
        if is_calibrated:
            before, after = (
                {**measure(exported, calibration), **metric(exported)} for exported in (fp32_folder, folder)
            )
            manifest['quantization'] = dict(pictures=len(calibration), before=before, after=after)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + '\n')
    return read_manifest(out)


@contextmanager
def replace_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder. The folder replaces `out` on success, and is deleted on an error.

    Args:
        overwrite: replace an earlier export in `out`.

    Raises:
        FolderInUse: if another process exports to `out`.
        ExportError: if `out` is a file, or a folder with anything but an earlier export, or without `overwrite`.
    """
    key = sha256(os.fsencode(out.absolute())).hexdigest()[:16]
    lock = Path(tempfile.gettempdir(), f'swin_backbone-export-{key}')  # nothing is left beside `out`
    with lock_folder(lock, f'exports {out}, by a lock in'):
        out.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(out):
            _require_export(out, overwrite)
        remove_leftovers(out.parent.absolute())
        with tempfile.TemporaryDirectory(prefix=make_temporary_name(out).name, dir=out.parent) as temporary:
            new, former = Path(temporary, 'new'), Path(temporary, 'former')
            new.mkdir()
            yield new
            if out.exists():
                out.replace(former)
            try:
                new.replace(out)
            except OSError:
                if former.exists():
                    former.replace(out)
                raise


def _require_export(out: Path, overwrite: bool) -> None:
    message = f'--out-dir takes a new folder, or with --overwrite one of an earlier export, got {str(out)!r}'
    if not out.is_dir() or out.is_symlink():
        raise ExportError(message)
    for path in sorted(out.iterdir()):
        is_ours = path.is_file() and (path.name in (MANIFEST, LIBRARY) or path.match('model.*'))
        if not (overwrite and is_ours):
            raise ExportError(f'{message}, with {path.name}' + ('' if is_ours else ', which no export writes'))


def make_manifest(graph: Graph, folder: Path, format: str, precision: str) -> dict[str, Any]:
    """Return the entries of deploy.json for every model. The model's files are in the folder already."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    names = [path.name for path in files]
    return dict(
        format=format,
        precision=precision,
        task=graph.task,
        file=formats.MODEL_FILES[format] if formats.MODEL_FILES[format] in names else formats.MODEL_FILES['onnx'],
        sha256={path.name: compute_digest(path) for path in files},
        **(dict(library=LIBRARY) if LIBRARY in names else {}),
        inputs=[vars(port) for port in graph.inputs],
        outputs=[vars(port) for port in graph.outputs],
    )


def write_model(graph: Graph, folder: Path, format: str, precision: str, operators: Optional[str] = None) -> None:
    """Capture a graph, and write it in a format to the file named in `formats.MODEL_FILES`.

    With `operators`, the file is ONNX for every runtime, and the compiled library is written beside it.
    """
    onnx_file = folder / formats.MODEL_FILES['onnx']
    if operators:
        graph = insert_nodes(graph, precision)
        shutil.copyfile(library_path(), folder / LIBRARY)
    elif format == 'onnx' and precision == 'fp16':
        graph = formats.narrow(graph)
    program = formats.capture(graph, make_example(graph))
    formats.write_onnx(program, graph, onnx_file, weights_apart=bool(operators))
    if format == 'openvino' and not operators:
        import openvino

        # Half precision is for stored weights. The runtime's settings choose the dtype of the computation.
        # openvino.convert_model would store the mask of each block at one size, for all windows and heads.
        model = get_openvino_core().read_model(str(onnx_file))
        path = folder / formats.MODEL_FILES[format]
        openvino.save_model(model, str(path), compress_to_fp16=precision in ('fp16', 'bf16'))
        onnx_file.unlink()


def measure(folder: Path, inputs: Sequence[Feed]) -> dict[str, float]:
    """Return the size of a model, and the median time of up to five inputs."""
    run = RuntimeModel(folder).run
    seconds = []
    for feed in [inputs[0], *inputs[:5]]:  # a warm-up first
        start = time.perf_counter()
        run(feed)
        seconds.append(time.perf_counter() - start)
    size = sum(path.stat().st_size for path in folder.glob('model.*'))
    return dict(bytes=size, seconds=statistics.median(seconds[1:]))


def make_example(graph: Graph) -> tuple[Tensor, ...]:
    """Return inputs for the capture of a graph. The values are of no use."""
    lengths = dict(batch=2, height=graph.example_size[0], width=graph.example_size[1])
    return tuple(
        torch.zeros([lengths.get(length, length) for length in port.shape], dtype=getattr(torch, port.dtype))
        for port in graph.inputs
    )


def predict_result(predictor: Predictor, picture: NDArray[Any]) -> Result:
    """Return PyTorch's result for a picture, in the form of `runtime.RuntimeModel.predict`."""
    (sample,) = predictor.predict([predictor.preprocess(make_frame(picture))])
    if 'pred_sem_seg' in sample and predictor.scope == 'mmseg':
        return dict(labels=sample.pred_sem_seg.data[0].numpy(), logits=sample.seg_logits.data.numpy())
    instances = sample.pred_instances.numpy()
    result = dict(boxes=instances.bboxes, scores=instances.scores, labels=instances.labels)
    if 'masks' in instances:
        result['masks'] = instances.masks.astype(bool)
    return result


def choose_dataset_samples(cfg: Config, phase: str, reference: Callable[[NDArray[Any]], Result]) -> list[verify.Sample]:
    """Return up to two pictures of a data set, if it is there, in which PyTorch finds something to compare."""
    samples: list[verify.Sample] = []
    with suppress(ValueError, OSError):  # as a picture that is no input
        for number, picture in enumerate(iter_dataset_pictures(cfg, phase, MAX_TRIED), 1):
            result = reference(picture)
            if verify.compare(result, result)['compared']:
                samples.append(verify.Sample(f'picture {number} of the {phase} set', picture))
            if len(samples) == MAX_SAMPLES:
                break
    return samples


def generate_samples(graph: Graph) -> list[verify.Sample]:
    """Return smooth noise in three sizes; a graph of one size gets its size, wider and higher pictures."""
    sizes: Any = verify.VERIFIED_SIZES
    if not graph.is_free:
        H, W = graph.inputs[0].shape[1:3]
        sizes = [(H, W), (H // 2 + 1, W), (H, W // 2 + 1)]
    bands = graph.inputs[0].shape[3]
    rng = np.random.default_rng(0)
    samples = []
    for number, size in enumerate(sizes, 1):
        noise = rng.integers(0, 256, (9, 12, bands), np.uint8)
        pixels = cv2.resize(noise, size[::-1], interpolation=cv2.INTER_CUBIC).reshape(*size, bands)
        samples.append(verify.Sample(f'generated picture {number}', pixels.astype(graph.inputs[0].dtype), True))
    return samples
