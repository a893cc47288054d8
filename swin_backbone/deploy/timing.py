"""Backbones as files, in the runtimes of these, ready to be timed beside each other."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from torch import Tensor, nn

from .export import write_model
from .formats import FORMATS, check_format
from .graph import maps_graph
from .runtime import MANIFEST, Model

RUNTIMES = {'onnxruntime': ('onnx', ('fp32',)), 'openvino': ('openvino', ('fp32', 'bf16'))}


def exported_runs(
    models: dict[str, nn.Module],
    free: Sequence[str],
    runtimes: Sequence[str],
    image: Tensor,
    threads: Optional[int],
    beside: Path,
) -> dict[str, Callable[[], object]]:
    """What runs each backbone as an ONNX model, by its name, sizes and runtime.

    Args:
        models: each is exported for the size of the image.
        free: those that are exported with free sizes as well.
        runtimes: of `RUNTIMES`; OpenVINO in bf16 too.
        beside: an empty folder, for the files.
    """
    runs: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        for sizes in ('fixed size', 'free sizes') if name in free else ('fixed size',):
            graph = maps_graph(model, 'backbone', None if sizes == 'free sizes' else (image.shape[2], image.shape[3]))
            folder = beside / f'{name}, {sizes}'
            folder.mkdir()
            write_model(graph, folder, 'onnx', 'fp32')
            for runtime in runtimes:
                kind, precisions = RUNTIMES[runtime]
                for precision in precisions:
                    check_format(kind, precision)
                    manifest = dict(format=kind, precision=precision, file=FORMATS['onnx'])  # which OpenVINO reads too
                    ports = dict(inputs=[vars(port) for port in graph.inputs], outputs=[vars(p) for p in graph.outputs])
                    (folder / MANIFEST).write_text(json.dumps({**manifest, **ports}))
                    run = Model(folder, threads=threads).run
                    runs[f'{name}, {sizes}, {runtime} {precision}'] = partial(run, [image.numpy()])
    return runs
