"""Export backbones and open them in their runtimes, to compare their times."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from swin_backbone.export.export import manifest_of, write_model
from swin_backbone.export.formats import FORMATS, OPSET, check_format, quiet
from swin_backbone.export.graph import Graph, maps_graph
from swin_backbone.export.runtime import MANIFEST, Model

RUNTIMES = {'onnxruntime': ('onnx', ('fp32',)), 'openvino': ('openvino', ('fp32', 'bf16'))}


def exported_runs(
    models: dict[str, nn.Module],
    ours: Sequence[str],
    runtimes: Sequence[str],
    image: Tensor,
    threads: Optional[int],
    beside: Path,
) -> dict[str, Callable[[], object]]:
    """Functions that run each backbone as an ONNX model, by the backbone's name, sizes and runtime.

    Args:
        models: backbones by name; each is exported for the size of the image.
        ours: names of backbones that are exported as by `tools/export.py`, and also with free sizes. The others are
            exported by `torch.onnx.export` alone.
        runtimes: names from `RUNTIMES`; OpenVINO also runs in bf16.
        beside: an empty folder for the files.
    """
    runs: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        for sizes in ('fixed size', 'free sizes') if name in ours else ('fixed size',):
            graph = maps_graph(model, 'backbone', None if sizes == 'free sizes' else (image.shape[2], image.shape[3]))
            folder = beside / f'{name}, {sizes}'
            folder.mkdir()
            if name in ours:
                write_model(graph, folder, 'onnx', 'fp32')
            else:
                _write_by_torch(graph, image[:1], folder / FORMATS['onnx'])
            for runtime in runtimes:
                kind, precisions = RUNTIMES[runtime]
                for precision in precisions:
                    check_format(kind, precision)
                    manifest = manifest_of(graph, folder, kind, precision)
                    manifest['file'] = FORMATS['onnx']  # which OpenVINO reads too
                    (folder / MANIFEST).write_text(json.dumps(manifest))
                    run = Model(folder, threads=threads).run
                    runs[f'{name}, {sizes}, {runtime} {precision}'] = partial(run, [image.numpy()])
    return runs


def _write_by_torch(graph: Graph, image: Tensor, path: Path) -> None:
    inputs, outputs = ([port.name for port in ports] for ports in (graph.inputs, graph.outputs))
    names: Any = dict(input_names=inputs, output_names=outputs)
    with torch.no_grad(), quiet():
        torch.onnx.export(graph.module, (image,), str(path), dynamo=True, opset_version=OPSET, verbose=False, **names)
