"""What is asked of a GPU: what it reaches, and whether the attention kernels are right there and how fast.

`models.py` measures backbones and detectors, `nvidia.py` runs NVIDIA's tools. Every function gives rows of a
table; on a CPU, where Triton's interpreter runs the kernels, small maps show that the program works.

Layout: B batch, H W height and width of a map, C channels, T tokens, h heads, N places of a window.
"""

import importlib.metadata
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from swin_backbone.backends.triton.attention import (
    attend_in_windows,
    attend_in_windows_backward,
    launch_backward,
    launch_forward,
)
from swin_backbone.backends.triton.check import LIMITS, attend_literally
from swin_backbone.backends.triton.tiles import Tiles, Tiling

from .. import machine

PACKAGES = 'torch', 'triton', 'mmdet', 'onedl-mmdetection', 'mmpretrain', 'onedl-mmpretrain', 'timm', 'transformers'
PROGRAMS = 'ncu', 'compute-sanitizer', 'nvidia-smi'
# Of a block: qkv, projection, and the two linear layers of the MLP, in widths of the map.
SLIM_LAYERS = (1, 3), (1, 1), (1, 4), (4, 1)
WIDTHS_FORWARD, WIDTHS_BACKWARD = 4, 8  # what attention reads and writes of each token, in widths of the map

TUNED: dict[str, dict[str, Any]] = {  # other choices than those of `backends/triton/tiles.py`
    '4 warps': dict(num_warps=4),
    '8 warps': dict(num_warps=8),
    '1 stage': dict(num_stages=1),
    '3 stages': dict(num_stages=3),
    'half the programs': dict(share=0.5),
    'twice the programs': dict(share=2),
}


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


def describe(device: torch.device, dtype: torch.dtype, stage: Stage, batch: int) -> Iterator[Row]:
    """The machine: names, versions, and its ceilings: what its memory, tensor cores and launches reach.

    Args:
        stage: whose linear layers are measured; those of the first are slim.
    """
    versions = {'python': platform.python_version(), 'cuda': torch.version.cuda}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    yield Row('versions', versions)
    yield Row('tools', {name: 'there' if shutil.which(name) else 'not there' for name in PROGRAMS})
    if device.type == 'cuda':
        p = torch.cuda.get_device_properties(device)
        names = {'capability': f'{p.major}.{p.minor}', 'multiprocessors': p.multi_processor_count}
        sizes = {'GiB': p.total_memory / 2**30, 'MiB of L2': p.L2_cache_size / 2**20}
        yield Row(p.name, {**names, **sizes})
    told = machine.peak_bandwidth(device)
    x = torch.empty(2**30 if device.type == 'cuda' else 2**22, dtype=torch.uint8, device=device)
    seconds = median_seconds(lambda: x.clone(), device)
    yield Row('memory', {'GB/s told': told and told / 1e9, 'GB/s of a copy': 2 * x.numel() / seconds / 1e9})
    yield Row('large GEMM', {'TFLOP/s': machine.matmul_rate(device, dtype) / 1e12})
    yield from _linear_layers(stage, batch, dtype, device)
    small = torch.ones(16, device=device)
    begin = time.perf_counter()
    for _ in range(1000):
        small.add_(1)
    launched = time.perf_counter() - begin
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    yield Row('a launch', {'us of the CPU': launched * 1e3, 'us in all': (time.perf_counter() - begin) * 1e3})


def _linear_layers(stage: Stage, batch: int, dtype: torch.dtype, device: torch.device) -> Iterator[Row]:
    """What the linear layers of a stage's blocks reach, by themselves."""
    tokens = batch * stage.height * stage.width
    for inputs, outputs in SLIM_LAYERS:
        C, D = inputs * stage.channels, outputs * stage.channels
        shapes = (tokens, C), (D, C), (D,)
        x_TC, weight_DC, bias_D = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)

        def run(x: Tensor = x_TC, weight: Tensor = weight_DC, bias: Tensor = bias_D) -> None:
            F.linear(x, weight, bias)

        seconds = median_seconds(run, device)
        rates = 2 * tokens * C * D / 1e12, tokens * (C + D) * dtype.itemsize / 1e9
        values = {name: rate / seconds for name, rate in zip(('TFLOP/s', 'GB/s'), rates)}
        yield Row(f'linear layer, {tokens} tokens, {C} to {D} channels', {'ms': seconds * 1e3, **values})


def median_seconds(run: Callable[[], Any], device: torch.device, repeats: int = 20) -> float:
    """Of one run, by the GPU's own clock where there is one."""
    seconds: list[float] = []
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


class Case(NamedTuple):
    """What the kernels get, as a backbone gives it."""

    tensors: tuple[Tensor, Optional[Tensor], Tensor]  # qkv (T, 3C); padding's (3C,), if there is any; bias (h, N, N)
    grad_TC: Tensor
    geometry: tuple[Any, ...]
    scale: float

    def forward(self) -> tuple[Tensor, Tensor]:
        results: tuple[Tensor, Tensor] = attend_in_windows(*self.tensors, *self.geometry, self.scale)
        return results

    def backward(self, out_TC: Tensor, lse_LhN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        settings = *self.geometry, self.scale, self.tensors[1] is not None, True
        grads: tuple[Tensor, Tensor, Tensor] = attend_in_windows_backward(
            self.grad_TC, *self.tensors, out_TC, lse_LhN, *settings
        )
        return grads

    def errors(self) -> tuple[bool, list[float]]:
        """Whether output and gradients are right, and twice the same; and how far each is from the literal one's."""
        qkv_T3C, padding_3C, bias_hNN = self.tensors
        exact_qkv, exact_bias = (x.double().requires_grad_() for x in (qkv_T3C, bias_hNN))
        exact_padding = None if padding_3C is None else padding_3C.double().requires_grad_()
        settings = *self.geometry, self.scale
        literal = attend_literally(exact_qkv, exact_padding, exact_bias, *settings)
        wanted = [x for x in (exact_qkv, exact_padding, exact_bias) if x is not None]
        expected = [literal.detach(), *torch.autograd.grad(literal, wanted, self.grad_TC.double())]
        results = []
        for _ in range(2):
            out_TC, lse_LhN = self.forward()
            results.append([x for x in (out_TC, *self.backward(out_TC, lse_LhN)) if x.numel()])
        largest = [float(e.abs().max()) or 1.0 for e in expected]  # the bias of a lone token has no gradient
        errors = [float((x.double() - e).abs().max()) / most for x, e, most in zip(results[0], expected, largest)]
        limit = LIMITS[self.grad_TC.dtype]
        return all(error <= limit for error in errors) and all(map(torch.equal, *results)), errors


def case(
    stage: Stage,
    batch: int,
    window: int,
    shifted: bool,
    dtype: torch.dtype,
    device: torch.device,
    mask_padding: bool = False,
) -> Case:
    """Random values of the attention kernels for a batch of maps of a stage, the same each time."""
    C, h, H, W = stage
    T, N, shift = batch * H * W, window**2, window // 2 * shifted
    generator = torch.Generator().manual_seed(0)
    shapes = (T, 3 * C), (3 * C,), (h, N, N), (T, C)
    qkv, padding, bias, grad = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    tensors = qkv, padding if H % window or W % window else None, bias
    return Case(tensors, grad, (batch, H, W, [window, window], [shift, shift], mask_padding), (C // h) ** -0.5)


def attention(
    stage: Stage, batch: int, window: int, shifted: bool, dtype: torch.dtype, device: torch.device
) -> Iterator[Row]:
    """The kernels by themselves: errors to the literal algorithm in float64, twice the same, time and its floor."""
    _, h, H, W = stage
    kernels = case(stage, batch, window, shifted, dtype, device)
    good, errors = kernels.errors()
    what = f'attention {H}x{W}, {h} heads, window {window}, {"shifted" if shifted else "unshifted"}'
    values: dict[str, Any] = {'good': good, 'errors': ' '.join(f'{error:.0e}' for error in errors)}
    out_TC, lse_LhN = kernels.forward()
    backward = partial(kernels.backward, out_TC, lse_LhN)
    runs: dict[str, Callable[[], Any]] = {'forward': kernels.forward, 'backward': backward}
    bandwidth = machine.peak_bandwidth(device)
    for (name, run), widths in zip(runs.items(), (WIDTHS_FORWARD, WIDTHS_BACKWARD)):
        seconds = median_seconds(run, device)
        values[f'{name} ms'] = seconds * 1e3
        if bandwidth:
            moved = widths * kernels.grad_TC.numel() * dtype.itemsize
            values[f'{name}, of its floor'] = f'{moved / bandwidth / seconds:.0%}'
    yield Row(what, values)


def any_size(number: int, largest: int, dtype: torch.dtype, device: torch.device) -> Iterator[Row]:
    """Whether the kernels are right for a number of maps of random sizes, up to a side; which are wrong."""
    generator, wrong = torch.Generator().manual_seed(1), []
    for _ in range(number):
        height, width, batch, window, shifted, mask_padding = (
            int(torch.randint(least, most + 1, (), generator=generator))
            for least, most in ((1, largest), (1, largest), (1, 3), (7, 8), (0, 1), (0, 1))
        )
        settings = batch, window, bool(shifted), dtype, device, bool(mask_padding)
        good, errors = case(Stage(32, 1, height, width), *settings).errors()
        if not good:
            wrong.append(f'{batch}x{height}x{width}, {window=}, {shifted=}, {mask_padding=}: {max(errors):.0e}')
    yield Row('attention of any size', {'good': not wrong, 'maps': number, 'wrong:': '; '.join(wrong) or None})


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


def launch(stage: Stage, batch: int, window: int, shifted: bool, dtype: torch.dtype, device: torch.device) -> Row:
    """Run each attention kernel once, and say whether all it gave is finite: for a profiler or a sanitizer."""
    kernels = case(stage, batch, window, shifted, dtype, device)
    out_TC, lse_LhN = kernels.forward()
    finite = all(bool(x.isfinite().all()) for x in (out_TC, lse_LhN, *kernels.backward(out_TC, lse_LhN)))
    return Row(f'launch {stage.height}x{stage.width}, window {window}, {shifted=}', {'good': finite})


def tuning(
    stage: Stage, batch: int, window: int, shifted: bool, dtype: torch.dtype, device: torch.device
) -> Iterator[Row]:
    """The kernels' times with other numbers of warps, pipeline stages and programs, in milliseconds."""
    _, h, H, W = stage
    tensors, grad_TC, settings, scale = case(stage, batch, window, shifted, dtype, device)
    (qkv_T3C, padding_3C, bias_hNN), shift = tensors, window // 2 * shifted
    out_TC, lse_LhN = launch_forward(Tiles(qkv_T3C, bias_hNN, *settings), *tensors, scale)
    needs = padding_3C is not None, True
    rows = {name: Row(f'tuning, {name} {H}x{W}, {h} heads, {shift=}', {}) for name in ('forward', 'backward')}
    for what, options in {'as it is': {}, **TUNED}.items():
        tiles = _Tried(qkv_T3C, bias_hNN, *settings, **options)

        def forward(tiles: Tiles = tiles) -> None:
            launch_forward(tiles, *tensors, scale)

        def backward(tiles: Tiles = tiles) -> None:
            launch_backward(tiles, grad_TC, *tensors, out_TC, lse_LhN, scale, *needs)

        for name, run in (('forward', forward), ('backward', backward)):
            try:
                rows[name].values[what] = median_seconds(run, device) * 1e3
            except Exception as error:  # a compiler's errors, as for too much shared memory, have no common type
                rows[name].values[what] = type(error).__name__
    yield from rows.values()


def markdown(rows: list[Row]) -> str:
    """One table for an issue: a line for each row."""

    def show(value: Any) -> str:
        return f'{value:.4g}' if isinstance(value, float) else str(value)

    lines = ['| what | |', '|---|---|']
    for what, values in rows:
        lines.append(f'| {what} | {", ".join(f"{name} {show(v)}" for name, v in values.items() if v is not None)} |')
    return '\n'.join(lines)
