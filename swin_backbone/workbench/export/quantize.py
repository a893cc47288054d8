"""Post-training quantization to int8, by NNCF and onnxruntime.

Linear layers and convolutions are quantized; norms, softmax, attention's own products and the position bias stay in
floating point.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from numpy.typing import NDArray

from ..configs.data_parts import find_tested_dataset, list_dataset_configs
from ..data.media import make_frame
from ..predict.predictor import Predictor
from .formats import quiet
from .graph import ExportError, Graph
from .picture import find_load_settings, find_resize_rule, load_bands
from .runtime import get_openvino_core, resize

CALIBRATION_PICTURES = 64

Feed = list[NDArray[Any]]


def iter_dataset_pictures(cfg: Config, phase: str, max_pictures: int) -> Iterator[NDArray[Any]]:
    """Yield up to `max_pictures` pictures of a config's data set, chosen at equal distances.

    Args:
        phase: 'train' or 'test'.

    Raises:
        ExportError: for an unreadable data set.
    """
    try:
        (_, settings), *_ = list_dataset_configs(cfg, phase)
        load_settings = find_load_settings(find_tested_dataset(cfg).pipeline)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            dataset = DATASETS.build(copy.deepcopy(dict(settings, pipeline=[])))
        for index in np.unique(np.linspace(0, len(dataset) - 1, max_pictures).astype(int)):
            yield load_bands(dataset.get_data_info(int(index))['img_path'], load_settings)
    except Exception as error:  # a data set of a user raises anything
        raise ExportError(f'the {phase} set of the config cannot be read ({error})') from error


def read_training_pictures(cfg: Config) -> list[NDArray[Any]]:
    """Return pictures of a config's training set.

    Raises:
        ExportError: for an unreadable training set.
    """
    try:
        return list(iter_dataset_pictures(cfg, 'train', CALIBRATION_PICTURES))
    except ExportError as error:
        raise ExportError(f'--precision int8 needs pictures to calibrate on: give --pictures; {error}') from error


def make_feeds(pictures: Sequence[NDArray[Any]], graph: Graph, cfg: Config, predictor: Predictor) -> list[Feed]:
    """Return the inputs of a graph for pictures: of a part, the images that the model makes of them.

    Args:
        cfg: config with the test pipeline of the predictor.
    """
    if graph.task == 'maps':
        images = [predictor.normalise(predictor.preprocess(make_frame(picture))).numpy() for picture in pictures]
        if not graph.is_free:  # without the padding to a multiple
            H, W = graph.inputs[0].shape[2:]
            images = [np.ascontiguousarray(image[..., :H, :W]) for image in images]
        return [[image] for image in images]
    resize_rule = find_resize_rule(find_tested_dataset(cfg).pipeline)
    pictures = [picture if picture.shape[2] == 3 else picture.astype(np.float32) for picture in pictures]
    return [[resize(picture, resize_rule)[None], np.array(picture.shape[:2], np.int64)] for picture in pictures]


def quantize_onnx(source: Path, target: Path, inputs: Sequence[Feed]) -> None:
    """Quantize an ONNX model: weights by channel, activations by range, in QDQ form."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    remaining = iter([dict(zip(('image',) if len(feed) == 1 else ('picture', 'size'), feed)) for feed in inputs])
    reader: Any = SimpleNamespace(get_next=lambda: next(remaining, None))
    with quiet():
        quantize_static(
            str(source),
            str(target),
            reader,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=['MatMul', 'Gemm', 'Conv'],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options=dict(MatMulConstBOnly=True),
        )


def quantize_openvino(source: Path, target: Path, inputs: Sequence[Feed]) -> None:
    """Quantize OpenVINO's IR."""
    import nncf
    import openvino

    original = get_openvino_core().read_model(str(source))
    products = [
        op.get_friendly_name()
        for op in original.get_ops()
        if op.get_type_name() == 'MatMul'
        and not any(op.input_value(side).get_node().get_type_name() == 'Constant' for side in (0, 1))
    ]
    with quiet():
        model = nncf.quantize(
            original,
            nncf.Dataset(list(inputs), list),
            model_type=nncf.ModelType.TRANSFORMER,  # norms and softmax stay in floating point
            preset=nncf.QuantizationPreset.MIXED,
            ignored_scope=nncf.IgnoredScope(names=products),
            subset_size=len(inputs),
        )
    for op in model.get_ops():
        if op.get_type_name() == 'NonMaxSuppression':  # transformations of eight bits lose the 4 in its boxes' shape
            boxes = openvino.opset13.reshape(op.input_value(0), np.array([0, -1, 4]), special_zero=True)
            op.input(0).replace_source_output(boxes.output(0))
    openvino.save_model(model, str(target), compress_to_fp16=False)
