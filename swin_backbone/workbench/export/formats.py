"""Write a captured graph to a file: ONNX or OpenVINO's IR."""

import copy
import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ...checks import check_choice
from ...replace import library_disabled
from .graph import BackboneMaps, ExportError, Graph

TORCH = Path(torch.__file__).parent

OPSET = 20  # the first with Gelu
IR_VERSION = 9  # of ONNX 1.15, as OPSET; the latest for ONNX Runtime 1.17
MODEL_FILES = {'onnx': 'model.onnx', 'openvino': 'model.xml'}
PRECISIONS = {'onnx': ('fp32', 'fp16', 'int8'), 'openvino': ('fp16', 'fp32', 'bf16', 'int8')}
OPERATOR_PRECISIONS = {'swin': ('fp32', 'bf16', 'int8')}  # precisions of --operators, for ONNX Runtime and OpenVINO
# Numbers in a result that replaces operators of constants. Tables of all windows of one size may exceed the weights.
LARGEST_FOLDED = 2048
PRODUCT_LAYERS = nn.Conv2d, nn.ConvTranspose2d, nn.Linear
PACKAGES = {'onnx': ('onnx', 'onnxscript', 'onnxruntime'), 'openvino': ('onnx', 'onnxscript', 'openvino')}


def check_format(format: str, precision: Optional[str], operators: Optional[str] = None) -> str:
    """Return the precision, for None the first of the format.

    Raises:
        ValueError: for an unknown format, an unsuitable precision or operators.
    """
    check_choice('--format', format, MODEL_FILES)
    precisions, option = PRECISIONS[format], f'--format {format}'
    if operators is not None:
        check_choice('--operators', operators, OPERATOR_PRECISIONS)
        precisions, option = OPERATOR_PRECISIONS[operators], f'--operators {operators}'
    return check_choice(f'--precision of {option}', precision or precisions[0], precisions)


def is_calibrated(precision: str, operators: Optional[str]) -> bool:
    """Return whether the precision needs pictures for calibration. Nodes of the library round each token by itself."""
    return precision == 'int8' and operators is None


def capture(graph: Graph, example: tuple[Tensor, ...]) -> ExportedProgram:
    """Capture a graph of operators, valid for every size if sizes are free.

    Args:
        example: inputs. Free dimensions must have different lengths: torch ties dimensions of equal length together.

    Raises:
        ExportError: names the function that prevents the capture.
    """
    try:
        # The cache of fake tensors compares symbolic shapes, which takes a third of a capture with free sizes.
        with torch.no_grad(), quiet(), library_disabled(), torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
            return torch.export.export(graph.module, example, dynamic_shapes=graph.dynamic_shapes(), strict=False)
    except Exception as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not Path(frame.filename).is_relative_to(TORCH)
        ]
        where = f'{frames[-1].name} in {frames[-1].filename}:{frames[-1].lineno}'
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(f'torch cannot capture the model as a graph, for {where}: {lines[-1]}') from error


def write_onnx(program: ExportedProgram, graph: Graph, path: Path, weights_apart: bool = False) -> None:
    """Write an ONNX model.

    Args:
        weights_apart: write weights to a second file, model.onnx.data. Runtimes map the file into memory.
    """
    from onnx_ir.passes.common import RemoveUnusedNodesPass
    from onnxscript.optimizer import optimize_ir

    from .fuse import simplify
    from .heads.operators import list_translations

    with quiet():
        exported: Any = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            custom_translation_table=list_translations(),
            verbose=False,
            optimize=False,
        )
        model = exported.model
        optimize_ir(model, output_size_limit=LARGEST_FOLDED)
    simplify(model)
    model.ir_version = IR_VERSION
    RemoveUnusedNodesPass()(model)
    for values, ports in ((model.graph.inputs, graph.inputs), (model.graph.outputs, graph.outputs)):
        for value, port in zip(values, ports):
            value.name = port.name
            value.shape = type(value.shape)(port.shape)
    model.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()  # places in the source code
        node.doc_string = None
    exported.save(str(path), external_data=weights_apart)


def narrow(graph: Graph) -> Graph:
    """Return a graph in float16. The dtypes of inputs and outputs stay.

    In a whole model, the backbone, the neck and the head's linear layers and convolutions compute in half precision.
    Normalisation of pixels, coordinates, scores, NMS and pasting of masks stay in float32. Above 1024, fp16 has only
    whole pixels.
    """
    module: Any = copy.deepcopy(graph.module)
    for inner in [module] if isinstance(module, BackboneMaps) else [module.maps, *_list_products(module.head)]:
        _narrow_module(inner)
    return replace(graph, module=module)


def _list_products(head: nn.Module) -> list[nn.Module]:
    """Return the linear layers and convolutions of a head outside torch's attention, which reads weights directly."""
    attentions = [layer for layer in head.modules() if isinstance(layer, nn.MultiheadAttention)]
    inside = {layer for attention in attentions for layer in attention.modules()}
    return [layer for layer in head.modules() if isinstance(layer, PRODUCT_LAYERS) and layer not in inside]


def _narrow_module(module: nn.Module) -> None:
    """Make a module compute in float16, between inputs and outputs in float32."""
    module.half()
    module.register_forward_pre_hook(lambda _, inputs: tuple(tensor.half() for tensor in inputs))
    module.register_forward_hook(
        lambda _, inputs, out: out.float() if isinstance(out, Tensor) else tuple(tensor.float() for tensor in out)
    )


_quiet = RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings of torch's exporters about internals. They are settings of the process: threads take turns."""
    with _quiet, warnings.catch_warnings():
        disabled = logging.root.manager.disable
        warnings.simplefilter('ignore')
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)
