"""Calls of the compiled operators with arguments of which most are wrong, in a process that may die.

`python direct_calls.py SEED COUNT` prints, as JSON, how many calls gave a result, and for those that did not what was
said, how often. A crash ends it with a signal, and the last line names the call; memory is checked under ASan, as
sanitize.sh runs it.
"""

import json
import random
import sys
from collections import Counter

import torch
from torch import Tensor

from swin_backbone.backends.native import why_not_in

OPS = torch.ops.swin_backbone
DTYPES = (torch.float32, torch.bfloat16)
NUMBERS = (
    *(-(2**63), -(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 96, 97, 255, 4096, 2**16, 2**20),
    *(2**20 + 1, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**33, 2**40, 2**62, 2**63 - 1),
)
FLOATS = (0.0, -1.0, 1e-45, 1e300, -1e300, float('inf'), float('nan'))
OTHER_DTYPES = (
    *(torch.float64, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.bool),
    *(torch.complex64, torch.float8_e4m3fn),
)


def pack(weight: Tensor, dtype: torch.dtype, unit: int = 1, transposed: bool = False) -> Tensor:
    return OPS.pack_linear(weight, dtype, unit, transposed)


def block_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    heads, head_dim = draw.choice([1, 2, 3]), draw.choice([8, 16, 32])
    C, D = heads * head_dim, 8 * draw.randint(1, 9)
    window = [draw.randint(1, 8), draw.randint(1, 8)]
    N, v2 = window[0] * window[1], draw.random() < 0.5
    shapes = ((3 * C, C), head_dim), ((C, C), 1), ((D, C), 1), ((C, D), 1)
    sizes = (C, C, 3 * C, C, C, C, D, C, C, C)
    B = draw.randint(1, 2)
    return dict(
        x=torch.randn(B, draw.randint(1, 17), draw.randint(1, 17), C),
        packed=[pack(torch.randn(shape), dtype, unit) for shape, unit in shapes],
        vectors=[torch.randn(size) if draw.random() < 0.7 else None for size in sizes],
        position_bias=torch.randn(heads, N, N),
        cosine_scale=torch.rand(heads) if v2 else None,
        drop_path=torch.rand(2, B) if draw.random() < 0.3 else None,
        heads=heads,
        window=window,
        shift=[side // 2 if draw.random() < 0.5 else 0 for side in window],
        padding=draw.randint(0, 2),
        scale=0.3,
        eps=[1e-5] * (3 if v2 and draw.random() < 0.5 else 2),
    )


def backward_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    arguments = block_arguments(draw, dtype)
    C, D = arguments['x'].shape[-1], arguments['packed'][2].numel() // arguments['x'].shape[-1]
    shapes = ((3 * C, C), 1), ((C, C), C // arguments['heads']), ((D, C), 1), ((C, D), 1)
    saved = OPS.block_saving(**arguments)[1] if draw.random() < 0.6 else None
    x, packed = arguments.pop('x'), arguments.pop('packed')
    turned = [pack(torch.randn(shape), dtype, unit, transposed=True) for shape, unit in shapes]
    return dict(x=x, grad=torch.randn_like(x), packed=packed, transposed=turned, **arguments, saved=saved)


def norm(draw: random.Random, channels: int) -> dict:
    weight, bias = (torch.randn(channels) if draw.random() < 0.6 else None for _ in range(2))
    return dict(norm_weight=weight, norm_bias=bias, eps=1e-5 if draw.random() < 0.7 else None)


def embed_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    channels, patch, C = draw.randint(1, 4), [draw.randint(1, 5), draw.randint(1, 5)], 2 * draw.randint(1, 50)
    weight, image = torch.randn(C, channels, *patch), torch.randn(2, channels, draw.randint(1, 33), draw.randint(1, 33))
    if draw.random() < 0.3:
        image = image.contiguous(memory_format=torch.channels_last)
    if draw.random() < 0.3:
        image = image[:, :1].expand(-1, channels, -1, -1)
    bias = torch.randn(C) if draw.random() < 0.5 else None
    return dict(image=image, packed=pack(weight, dtype), bias=bias, **norm(draw, C), patch=patch)


def merge_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    C, out = draw.randint(1, 40), 2 * draw.randint(1, 50)
    x, post_norm = torch.randn(2, draw.randint(1, 17), draw.randint(1, 17), C), draw.random() < 0.5
    packed = pack(torch.randn(out, 4 * C), dtype)
    return dict(x=x, packed=packed, **norm(draw, out if post_norm else 4 * C), post_norm=post_norm)


def with_gradient(arguments: dict, run, inputs: int, dtype: torch.dtype) -> dict:
    """The arguments of a patch layer's gradients, from those of the layer."""
    x, packed, *others = arguments
    grad = torch.randn_like(run(**arguments))
    turned = pack(torch.randn(grad.shape[-1], inputs), dtype, transposed=True)
    first = {x: arguments[x], 'grad': grad, 'packed': arguments[packed], 'transposed': turned}
    return {**first, **{name: arguments[name] for name in others}}


def embed_backward_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    arguments = embed_arguments(draw, dtype)
    inputs = arguments['image'].shape[1] * arguments['patch'][0] * arguments['patch'][1]
    return with_gradient(arguments, OPS.embed, inputs, dtype)


def merge_backward_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    arguments = merge_arguments(draw, dtype)
    return with_gradient(arguments, OPS.merge, 4 * arguments['x'].shape[-1], dtype)


def output_norm_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    C = draw.randint(1, 100)
    weight, bias = (torch.randn(C) if draw.random() < 0.6 else None for _ in range(2))
    return dict(x=torch.randn(2, draw.randint(1, 17), draw.randint(1, 17), C), weight=weight, bias=bias, eps=1e-5)


def output_norm_backward_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    arguments = output_norm_arguments(draw, dtype)
    x = arguments.pop('x')
    return dict(x=x, grad=torch.randn_like(x).permute(0, 3, 1, 2).contiguous(), **arguments)


def pack_arguments(draw: random.Random, dtype: torch.dtype) -> dict:
    weight = torch.randn(draw.randint(1, 200), draw.randint(1, 200))
    return dict(weight=weight, dtype=dtype, unit=draw.choice([1, 8, 32, 64, 96]), transposed=draw.random() < 0.5)


def checksum_arguments(draw: random.Random, _) -> dict:
    return dict(tensors=[torch.randn(draw.randint(0, 999)) for _ in range(draw.randint(1, 3))])


RIGHT = {
    'block': block_arguments,
    'block_': block_arguments,
    'block_saving': block_arguments,
    'block_backward': backward_arguments,
    'embed': embed_arguments,
    'embed_backward': embed_backward_arguments,
    'merge': merge_arguments,
    'merge_backward': merge_backward_arguments,
    'output_norm': output_norm_arguments,
    'output_norm_backward': output_norm_backward_arguments,
    'pack_linear': pack_arguments,
    'checksum': checksum_arguments,
}


def resized(x: Tensor, sizes: list[int]) -> Tensor:
    """Of other sizes: by memory of its own, or none where that would be large."""
    count = 1
    for size in sizes:
        count *= size
    if count <= 1 << 22:
        return torch.zeros(sizes, dtype=x.dtype)
    if count < 1 << 36:  # an operator may well be asked to read this much, and the machine be too small
        return x
    return torch.zeros(1, dtype=x.dtype).expand(sizes)


def without_memory(x: Tensor, draw: random.Random) -> Tensor:
    x = x.clone()
    x.untyped_storage().resize_(draw.choice([0, x.nbytes // 2, max(x.nbytes - 1, 0)]))
    return x


def in_odd_memory(x: Tensor, draw: random.Random) -> Tensor:
    """It begins somewhere in its storage, at a whole number or not."""
    by = draw.choice([1, 2, 3, x.itemsize, 5 * x.itemsize])
    if not x.numel():
        return x
    memory = bytearray(x.nbytes + by)
    return torch.frombuffer(memory, dtype=x.dtype, offset=by, count=x.numel()).view(x.shape)


def wrong_tensor(x: Tensor, draw: random.Random) -> object:
    sizes = list(x.shape)
    at = draw.randrange(len(sizes)) if sizes else 0
    if not sizes:
        return x.expand(3)
    kind = draw.randrange(15)
    if kind == 0:
        return x.to(draw.choice(OTHER_DTYPES))
    if kind == 1:
        return draw.choice([x[None], x.flatten(), x[0], x.sum()])
    if kind == 2:
        return x.transpose(0, -1)
    if kind == 3:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 4:  # every second of twice as many
        return x.repeat_interleave(2, at)[tuple(slice(None, None, 2 if i == at else 1) for i in range(len(sizes)))]
    if kind in (5, 6, 7):
        sizes[at] = draw.choice([0, max(sizes[at] - 1, 0), sizes[at] + 1, 2 * sizes[at], *map(abs, NUMBERS[9:-3])])
        return resized(x, sizes)
    if kind == 8:  # empty, and huge where that costs nothing
        sizes = [draw.choice([1, size, 2**31, 2**40]) for size in sizes]
        sizes[at] = 0
        return torch.zeros(sizes, dtype=x.dtype) if all(size < 2**20 for size in sizes) else x[:0]
    if kind == 9:
        return x.narrow(at, 0, min(1, sizes[at])).expand(sizes) if sizes[at] else x
    if kind == 10:
        return without_memory(x, draw)
    if kind == 11:
        return in_odd_memory(x, draw)
    if kind == 12:
        return draw.choice([x.to('meta'), x.to_sparse()])
    if kind == 13:
        return torch.full_like(x, draw.choice([torch.nan, torch.inf, 3e38]) if x.is_floating_point() else 255)
    return None


def wrong(value: object, draw: random.Random) -> object:
    """An argument of another kind, size or value than this one."""
    if isinstance(value, Tensor):
        return wrong_tensor(value, draw)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice(NUMBERS)
    if isinstance(value, float):
        return draw.choice(FLOATS)
    if isinstance(value, torch.dtype):
        return draw.choice(OTHER_DTYPES)
    if isinstance(value, list):
        value, kind = list(value), draw.randrange(5)
        at = draw.randrange(len(value)) if value else 0
        if kind == 0 or not value:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return value + value[:1]
        if kind == 2:
            value[0], value[at] = value[at], value[0]
            return value
        value[at] = wrong(value[at], draw)
        return value
    return torch.randn(draw.choice([0, 1, 8, 24, 96]))  # instead of None


def main(seed: int, count: int) -> None:
    torch.set_num_threads(2)
    computed = [dtype for dtype in DTYPES if why_not_in(dtype) is None]
    right, results, said, foreign = 0, 0, Counter(), Counter()
    for number in range(count):
        draw = random.Random(seed * 1_000_003 + number)
        torch.manual_seed(draw.randrange(1 << 30))
        name = draw.choice(list(RIGHT))
        arguments = RIGHT[name](draw, draw.choice(computed))
        changed = draw.sample(list(arguments), min(draw.choice([0, 1, 1, 1, 2, 2, 3]), len(arguments)))
        for argument in changed:
            arguments[argument] = wrong(arguments[argument], draw)
        print(number, name, *changed, file=sys.stderr, flush=True)
        try:
            getattr(OPS, name)(**arguments)
            results += 1
            right += not changed
        except (ValueError, TypeError) as error:
            said[str(error).splitlines()[0]] += 1
        except (RuntimeError, NotImplementedError) as error:  # torch's: an argument of another type than the operator's
            foreign[str(error).splitlines()[0]] += 1
        if not changed and results == 0:
            raise AssertionError(f'{name} does not take its own arguments')
    print(json.dumps(dict(right=right, results=results, said=said, foreign=foreign)))


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]))
