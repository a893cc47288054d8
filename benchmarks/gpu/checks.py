"""Whether the kernels are right in use: in memory that was used before, on huge maps, in a backbone, in a CUDA graph.

Every function gives rows of the table of `kernels.py`; on a CPU small maps show that the program works.

Layout: B batch, C channels, H W height and width, T tokens, h heads, N places of a window.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from .kernels import Case, Row, Stage, case
from .models import capture

WINDOW = 7
# So many tokens a side that two maps of a first stage hold more values than int32 counts: 2 * SIDE**2 * 3 * 96 > 2**31.
SIDE = 1932
HUGE = Stage(96, 3, SIDE, SIDE)
HUGE_GIB = 20  # of memory, which their check takes at most
WORSE_THAN_PEER = 2  # so many times as far from the exact result as a peer is right


def used_memory(stage: Stage, dtype: torch.dtype, device: torch.device) -> Iterator[Row]:
    """Whether the attention kernels give the same, to the bit, where the memory that they get holds NaN."""
    kernels = case(stage, 1, WINDOW, True, dtype, device)

    def results(prepare: Callable[[], None]) -> list[Tensor]:
        prepare()
        out_TC, lse_LhN = kernels.forward()
        prepare()
        return [out_TC, lse_LhN, *kernels.backward(out_TC, lse_LhN)]

    def fill_with_nan() -> None:
        number = 2**28 if device.type == 'cuda' else 2**16
        blocks = [torch.full((number,), torch.nan, device=device) for _ in range(4)]
        del blocks  # the allocator hands it out again

    found, expected = results(fill_with_nan), results(lambda: None)
    good = all(map(torch.equal, found, expected)) and all(bool(x.isfinite().all()) for x in found)
    yield Row(f'attention {stage.height}x{stage.width}, in memory of NaN', {'good': good})


def huge_maps(stage: Stage, dtype: torch.dtype, device: torch.device) -> Iterator[Row]:
    """Whether two images that are computed together are what each is alone, to the bit.

    Args:
        stage: `HUGE`, whose values are more than int32 counts.
    """
    if device.type == 'cuda' and torch.cuda.mem_get_info(device)[0] < HUGE_GIB * 2**30 and stage == HUGE:
        yield Row('attention on huge maps', {'left out:': f'it takes {HUGE_GIB} GiB'})
        return
    C, h, H, W = stage
    T, N = H * W, WINDOW**2
    qkv_T3C = torch.randn(2 * T, 3 * C, device=device, dtype=dtype)
    padding_3C = torch.randn(3 * C, device=device, dtype=dtype) if H % WINDOW or W % WINDOW else None
    bias_hNN, grad_TC = (torch.randn(shape, device=device, dtype=dtype) for shape in ((h, N, N), (2 * T, C)))

    def results(images: slice, batch: int) -> tuple[Tensor, Tensor]:
        rows = slice(images.start * T, images.stop * T)
        geometry = batch, H, W, [WINDOW] * 2, [WINDOW // 2] * 2, False
        kernels = Case((qkv_T3C[rows], padding_3C, bias_hNN), grad_TC[rows], geometry, (C // h) ** -0.5)
        out_TC, lse_LhN = kernels.forward()
        return out_TC, kernels.backward(out_TC, lse_LhN)[0]

    together = results(slice(0, 2), 2)
    same = []
    for image in range(2):
        alone = results(slice(image, image + 1), 1)
        same += [torch.equal(x[image * T : (image + 1) * T], y) for x, y in zip(together, alone)]
    yield Row(f'attention on huge maps, 2 of {H}x{W}', {'good': all(same), 'values': qkv_T3C.numel()})


def precision(name: str, model: nn.Module, peer: nn.Module, x_BCHW: Tensor, dtype: torch.dtype) -> Iterator[Row]:
    """How far maps and gradients by autocast are from a peer's in float32, beside the peer's own by autocast.

    Args:
        peer: another backbone, which gives the same maps, and has the same parameters under the same names.
    """
    exact = _maps_and_gradients(peer, x_BCHW, torch.float32)
    errors, allowed = (_errors(_maps_and_gradients(of, x_BCHW, dtype), exact) for of in (model, peer))
    good = all(error <= WORSE_THAN_PEER * most for error, most in zip(errors, allowed))  # NaN is not
    shown = [f'{error:.1e} beside {most:.1e}' for error, most in zip(errors, allowed)]
    yield Row(f'precision, {name}', {'good': good, 'maps:': '; '.join(shown[:-1]), 'gradients:': shown[-1]})


def _maps_and_gradients(model: nn.Module, x_BCHW: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """In eval mode: the maps; and all parameters' gradients, as one tensor, for a random gradient of the maps."""
    kind, generator = x_BCHW.device.type, torch.Generator().manual_seed(0)
    model.train(False)  # what mmdet's eval() returns is None
    with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
        maps = list(model(x_BCHW))
    grads = [torch.randn(x.shape, generator=generator).to(x) for x in maps]
    _, parameters = zip(*sorted(model.named_parameters()))
    found = torch.autograd.grad(maps, parameters, grads)
    return [*(x.detach() for x in maps), torch.cat([x.flatten() for x in found])]


def _errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """The norm of each error by that of the exact."""
    return [float((x.double() - y.double()).norm() / y.double().norm()) for x, y in zip(found, exact)]


def captured(model: nn.Module, x_BCHW: Tensor, dtype: torch.dtype) -> Iterator[Row]:
    """Whether a forward that is replayed from a CUDA graph gives what an eager one gives, to the bit."""
    if x_BCHW.device.type != 'cuda':
        yield Row('a captured forward', {'left out:': 'only CUDA has graphs'})
        return
    maps: list[Tensor] = []
    model.eval()

    def run() -> None:
        # Autocast keeps the casts of weights until it ends: a graph that is captured inside it would not have them.
        with torch.autocast('cuda', dtype, cache_enabled=False), torch.no_grad():
            maps[:] = model(x_BCHW)

    run()
    expected = [x.clone() for x in maps]
    capture(run).replay()
    torch.cuda.synchronize(x_BCHW.device)
    yield Row('a captured forward', {'good': all(map(torch.equal, maps, expected))})
