"""What backbones and detectors cost on a GPU: time, memory, and where the time goes.

Every function gives rows of the table of `kernels.py`; on a CPU small models show that the program works.

Layout: B batch, C channels, H W height and width.
"""

import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # its __all__ leaves it out
from torch.profiler import ProfilerActivity, profile

from swin_backbone.archs import ARCHS

from .. import timing
from .kernels import Row, median_seconds

KINDS = {  # of kernels, and on a CPU of operators: the first whose pattern is found in the name
    'attention': r'attend|fmha|flash|soft_?max',
    'GEMM': r'gemm|cutlass|nvjet|xmma|cublas|cudnn|splitk|[^a-z]b?mm\b|addmm|conv',
    'norm': r'norm|gammabeta',
    'GELU': r'gelu',
    'casts, copies, padding': r'copy|memcpy|catarray|pad|roll|index|clone',
    'sums': r'reduce|sum',
    'fills': r'fill|memset|zero',
    'elementwise': r'elementwise|add|mul',
}
LONGEST = 10  # kernels that have a line each


def kernels(name: str, model: nn.Module, x_BCHW: Tensor, train: bool, dtype: torch.dtype, runs: int) -> Iterator[Row]:
    """Where the time of a forward or a training step goes: the kernels by kind, and the longest by name."""
    device = x_BCHW.device
    run = timing.make_run(model.to(device), x_BCHW, train, dtype)
    run()
    on_cuda = device.type == 'cuda'
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as profiled:
        for _ in range(runs):
            run()
    where, of_device = ('CUDA', 'self_device_time_total') if on_cuda else ('CPU', 'self_cpu_time_total')
    events = [event for event in profiled.key_averages() if event.device_type == getattr(DeviceType, where)]
    times = Counter({event.key: getattr(event, of_device) / runs / 1e3 for event in events})
    kinds: Counter[str] = Counter()
    for key, milliseconds in times.items():
        found = next((kind for kind, pattern in KINDS.items() if re.search(pattern, key, re.I)), 'others')
        kinds[found] += milliseconds
    what = f'{"step" if train else "forward"}, {name}'
    launched = sum(event.count for event in events) / runs
    yield Row(f'{what}, kernels', {'ms in all:': sum(times.values()), 'number': launched, **dict(kinds.most_common())})
    longest = {f'`{key[:80]}`'.replace('|', ' '): milliseconds for key, milliseconds in times.most_common(LONGEST)}
    yield Row(f'{what}, longest kernels', longest)


def backbone(name: str, model: nn.Module, x_BCHW: Tensor, train: bool, dtype: torch.dtype, runs: int) -> Iterator[Row]:
    """A forward or a training step: latency, what launching takes of it, one replay of a CUDA graph, peak memory."""
    device = x_BCHW.device
    run = timing.make_run(model.to(device), x_BCHW, train, dtype)
    warm_up = 2 if device.type == 'cuda' else 0
    values: dict[str, Any] = {'ms': timing.alternate({name: run}, runs, warm_up)[name].median * 1e3}
    if device.type == 'cuda':
        launch = timing.make_run(model, x_BCHW, train, dtype, wait=False)
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        launch()
        values['ms to launch'] = (time.perf_counter() - begin) * 1e3
        torch.cuda.synchronize(device)
        values['peak MiB'] = timing.peak_device_growth(run, device) / 2**20
        values['ms, CUDA graph'] = _graph_milliseconds(launch, runs)
    yield Row(f'{"step" if train else "forward"}, {name}', values)
    del run, model
    gc.collect()
    if device.type == 'cuda':
        torch.cuda.empty_cache()


def capture(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of one run, after three that warm up.

    Raises:
        RuntimeError: if what it does cannot be captured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def _graph_milliseconds(run: Callable[[], None], replays: int) -> Optional[float]:
    """Of one replay, without the CPU: median; None where it cannot be captured."""
    try:
        graph = capture(run)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return median_seconds(graph.replay, torch.device('cuda', torch.cuda.current_device()), replays) * 1e3


def detector_step(
    what: str, cfg: Config, ours: bool, batch: int, size: tuple[int, int], device: torch.device, runs: int
) -> Iterator[Row]:
    """A whole training step of a detector with masks: losses, backward and optimizer, on pictures and objects of noise.

    Args:
        cfg: of a detector on `SwinBackbone` with an `arch`, with its optimizer wrapper; the weights are random.
        ours: else with mmdet's `SwinTransformer` in the place of the backbone.
        size: (height, width) of the pictures.

    Raises:
        ImportError: if mmdet is not installed.
    """
    from mmdet.testing import demo_mm_inputs
    from mmengine.optim import build_optim_wrapper
    from mmengine.registry import MODELS, init_default_scope

    init_default_scope(cfg.get('default_scope', 'mmdet'))
    kept = {key: value for key, value in cfg.model.backbone.items() if key != 'init_cfg'}
    if not ours:
        sizes = ARCHS[kept.pop('arch')]._asdict()
        kept = {**kept, **sizes, 'type': 'mmdet.SwinTransformer'}
    torch.manual_seed(0)
    model = MODELS.build({**cfg.model, 'backbone': kept}).to(device).train()
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    data = demo_mm_inputs(batch, [(3, *size)] * batch, num_classes=80, with_mask=True, device=str(device))

    def run() -> None:
        model.train_step(data, optimizer)
        if device.type == 'cuda':
            torch.cuda.synchronize(device)

    name = f'{what}, {"swin_backbone" if ours else "mmdet"}'
    values = {'ms': timing.alternate({name: run}, runs, 2 if device.type == 'cuda' else 0)[name].median * 1e3}
    if device.type == 'cuda':
        values['peak MiB'] = timing.peak_device_growth(run, device) / 2**20
    yield Row(name, values)
