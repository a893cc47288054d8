"""What is asked of a GPU: whether the kernels are right there, at the sizes they are for, and what each part costs.

Every function gives rows of a table; on a CPU, where Triton's interpreter runs the kernels, small maps show that the
program works.

Layout: B batch, H W height and width of a map, C channels, T tokens, h heads, N places of a window.
"""

import gc
import importlib.metadata
import platform
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ..ops.triton.attention import attend_in_windows, attend_in_windows_backward, launch_backward, launch_forward
from ..ops.triton.check import LIMITS, attend_literally
from ..ops.triton.tiles import Tiles, Tiling
from . import machine, timing

PACKAGES = 'torch', 'triton', 'mmdet', 'onedl-mmdetection', 'timm', 'transformers'
WIDTHS_FORWARD, WIDTHS_BACKWARD = 4, 8  # what attention reads and writes of each token, in widths of the map

TUNED: dict[str, dict] = {  # other choices than those of `ops/triton/tiles.py`
    '4 warps': dict(num_warps=4),
    '8 warps': dict(num_warps=8),
    '1 stage': dict(num_stages=1),
    '3 stages': dict(num_stages=3),
    'half the programs': dict(share=0.5),
    'twice the programs': dict(share=2),
}
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


class Row(NamedTuple):
    """One line of the report."""

    what: str
    values: dict[str, Any]


class Stage(NamedTuple):
    """The maps at which one stage attends."""

    channels: int
    heads: int
    height: int
    width: int


def stages(arch: tuple[int, tuple[int, ...], tuple[int, ...]], size: tuple[int, int]) -> list[Stage]:
    """Those of a backbone of `ARCHS` on pictures of a size (height, width)."""
    channels, _depths, heads = arch
    height, width = (-(-length // 4) for length in size)
    found = []
    for number in heads:
        found.append(Stage(channels, number, height, width))
        channels, height, width = 2 * channels, -(-height // 2), -(-width // 2)
    return found


def describe(device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """The machine: names, versions, and what its memory, tensor cores and launches reach."""
    versions = {'python': platform.python_version(), 'cuda': torch.version.cuda}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    yield Row('versions', versions)
    if device.type == 'cuda':
        p = torch.cuda.get_device_properties(device)
        capability, gib = f'{p.major}.{p.minor}', p.total_memory / 2**30
        yield Row(p.name, {'capability': capability, 'multiprocessors': p.multi_processor_count, 'GiB': gib})
    told = machine.peak_bandwidth(device)
    x = torch.empty(2**30 if device.type == 'cuda' else 2**22, dtype=torch.uint8, device=device)
    seconds = median_seconds(lambda: x.clone(), device)
    yield Row('memory', {'GB/s told': told and told / 1e9, 'GB/s of a copy': 2 * x.numel() / seconds / 1e9})
    yield Row('large GEMM', {'TFLOP/s': machine.matmul_rate(device, dtype) / 1e12})
    small = torch.ones(16, device=device)
    begin = time.perf_counter()
    for _ in range(1000):
        small.add_(1)
    yield Row('a launch', {'us of the CPU': (time.perf_counter() - begin) * 1e3})


def median_seconds(run: Callable[[], Any], device: torch.device, repeats: int = 20) -> float:
    """Of one run, by the GPU's own clock where there is one."""
    seconds = []
    for turn in range(-2, repeats) if device.type == 'cuda' else range(1):
        if device.type == 'cuda':
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize(device)
            took = begin.elapsed_time(end) / 1e3
        else:
            start = time.perf_counter()
            run()
            took = time.perf_counter() - start
        if turn >= 0:
            seconds.append(took)
    return statistics.median(seconds)


def _inputs(
    stage: Stage, batch: int, window: int, shifted: bool, dtype: torch.dtype, device: torch.device
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, tuple]:
    """Random qkv (T, 3C), padding (3C,) and bias (h, N, N) of a stage; gradient (T, C); and how maps are cut."""
    C, h, H, W = stage
    T, N, shift = batch * H * W, window**2, window // 2 * shifted
    generator = torch.Generator().manual_seed(0)
    shapes = (T, 3 * C), (3 * C,), (h, N, N), (T, C)
    qkv, padding, bias, grad = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return (qkv, padding, bias), grad, (batch, H, W, [window, window], [shift, shift], False)


def attention(
    stage: Stage, batch: int, window: int, shifted: bool, dtype: torch.dtype, device: torch.device
) -> Iterator[Row]:
    """The kernels by themselves: errors to the literal algorithm in float64, twice the same, time and its floor."""
    C, h, H, W = stage
    tensors, grad_TC, geometry = _inputs(stage, batch, window, shifted, dtype, device)
    settings = *geometry, (C // h) ** -0.5

    def forward() -> tuple[Tensor, Tensor]:
        return attend_in_windows(*tensors, *settings)

    out_TC, lse_LhN = forward()

    def backward() -> tuple[Tensor, Tensor, Tensor]:
        return attend_in_windows_backward(grad_TC, *tensors, out_TC, lse_LhN, *settings, True, True)

    qkv_T3C, padding_3C, bias_hNN = exact = [x.double().requires_grad_() for x in tensors]
    literal = attend_literally(qkv_T3C, padding_3C, bias_hNN, *settings)
    expected = [literal.detach(), *torch.autograd.grad(literal, exact, grad_TC.double())]
    del literal, exact, qkv_T3C, padding_3C, bias_hNN
    first, second = ([forward()[0], *backward()] for _ in range(2))
    largest = [float(e.abs().max()) or 1.0 for e in expected]  # padding that is not there has no gradient
    errors = [float((x.double() - e).abs().max()) / most for x, e, most in zip(first, expected, largest)]
    good = all(error <= LIMITS[dtype] for error in errors) and all(map(torch.equal, first, second))
    what = f'attention {H}x{W}, {h} heads, window {window}, {"shifted" if shifted else "unshifted"}'
    values: dict[str, Any] = {'good': good, 'errors': ' '.join(f'{error:.0e}' for error in errors)}
    del expected, first, second
    bandwidth = machine.peak_bandwidth(device)
    for name, run, widths in (('forward', forward, WIDTHS_FORWARD), ('backward', backward, WIDTHS_BACKWARD)):
        seconds = median_seconds(run, device)
        values[f'{name} ms'] = seconds * 1e3
        if bandwidth:
            values[f'{name}, of its floor'] = f'{widths * grad_TC.numel() * dtype.itemsize / bandwidth / seconds:.0%}'
    yield Row(what, values)


class _Tried(Tiles):
    """Tiles with other options of the kernels, and another number of programs."""

    def __init__(self, *arguments: Any, share: float = 1, **options: int):
        super().__init__(*arguments)
        self.share, self.options = share, options

    def _blocks(self, *arguments: Any, **options: Any) -> Tiling:
        blocks, options = super()._blocks(*arguments, **options)
        return Tiling(blocks, {**options, **self.options})

    def grid(self, *arguments: Any) -> tuple[int, int, int]:
        heads, programs, blocks = super().grid(*arguments)
        return heads, max(1, min(self.num_windows, round(programs * self.share))), blocks


def tuning(
    stage: Stage, batch: int, window: int, shifted: bool, dtype: torch.dtype, device: torch.device
) -> Iterator[Row]:
    """The kernels' times with other numbers of warps, pipeline stages and programs, in milliseconds."""
    C, h, H, W = stage
    tensors, grad_TC, settings = _inputs(stage, batch, window, shifted, dtype, device)
    shift, scale = window // 2 * shifted, (C // h) ** -0.5
    qkv_T3C, _, bias_hNN = tensors
    out_TC, lse_LhN = launch_forward(Tiles(qkv_T3C, bias_hNN, *settings), *tensors, scale)
    rows = {name: Row(f'tuning, {name} {H}x{W}, {h} heads, {shift=}', {}) for name in ('forward', 'backward')}
    for what, options in {'as it is': {}, **TUNED}.items():
        tiles = _Tried(qkv_T3C, bias_hNN, *settings, **options)

        def forward(tiles: Tiles = tiles) -> None:
            launch_forward(tiles, *tensors, scale)

        def backward(tiles: Tiles = tiles) -> None:
            launch_backward(tiles, grad_TC, *tensors, out_TC, lse_LhN, scale, True, True)

        for name, run in (('forward', forward), ('backward', backward)):
            try:
                rows[name].values[what] = median_seconds(run, device) * 1e3
            except Exception as error:  # a compiler's errors, as for too much shared memory, have no common type
                rows[name].values[what] = type(error).__name__
    yield from rows.values()


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


def _graph_milliseconds(run: Callable[[], None], replays: int) -> Optional[float]:
    """Of one replay, without the CPU: median; None where it cannot be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return median_seconds(graph.replay, torch.device('cuda', torch.cuda.current_device()), replays) * 1e3


def markdown(rows: list[Row]) -> str:
    """One table for an issue: a line for each row."""

    def show(value: Any) -> str:
        return f'{value:.4g}' if isinstance(value, float) else str(value)

    lines = ['| what | |', '|---|---|']
    for what, values in rows:
        lines.append(f'| {what} | {", ".join(f"{name} {show(v)}" for name, v in values.items() if v is not None)} |')
    return '\n'.join(lines)
