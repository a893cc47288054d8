"""Mixed precision on a CPU: the bfloat16 and float32 parts of a whole model."""

import copy
import re
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from helpers import ROOT
from helpers.export.small_exports import small_config
from helpers.openmmlab.breadth import PLACED, build, pictures_and_truth, predict, swapped, train_one_step
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn
from torch.overrides import TorchFunctionMode

from benchmarks.paper import Traffic
from swin_backbone import SwinBackbone, mixed_precision
from swin_backbone.acceleration import accelerate
from swin_backbone.openmmlab.config_parts import walk
from swin_backbone.openmmlab.mixed_precision import BEHIND_FORWARD, MixedPrecisionHook
from swin_backbone.openmmlab.mmcv_ops import ext

TABLE = ROOT / 'docs/explanation/mixed_precision.md'
FAMILIES = ['Mask R-CNN', 'Cascade Mask R-CNN', 'RetinaNet', 'ATSS', 'Mask2Former, instances', 'UPerNet']

SIDE = 128


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = SwinBackbone(arch='nano', drop_path_rate=0.0)
        self.head = nn.Linear(256, 2)

    def forward(self, x):
        results = self.backbone(x)
        return results, self.head(results[-1].mean((2, 3)))


def wrapper(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return OPTIM_WRAPPERS.build(dict(type='Bfloat16OptimWrapper', optimizer=optimizer))


def test_a_whole_model_computes_in_bfloat16_and_trains():
    model, x = Model().train(), torch.randn(1, 3, 64, 64)
    optim_wrapper, plain = wrapper(model), model(x)[0]
    with torch.autocast('cpu', torch.bfloat16):
        expected = model(x)
    with optim_wrapper.optim_context(model):
        _, scores = model(x)
    assert torch.equal(scores, expected[1])
    assert scores.dtype == torch.bfloat16
    optim_wrapper.update_params(scores.float().sum())
    assert not torch.is_autocast_enabled('cpu')
    assert not torch.equal(model(x)[0][0], plain[0])


class Recorder(TorchFunctionMode):
    """Record the dtypes of results of functions."""

    def __init__(self, classes):
        super().__init__()
        self.found, self.classes = defaultdict(set), classes

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = getattr(function, '__name__', '')
        if name in ('conv2d', 'linear'):
            self.found['convolutions and linear layers'].add(result.dtype)
        if name == 'softmax' and result.shape[-1] in self.classes:
            self.found['softmax over classes'].add(result.dtype)
        if name == 'einsum' and result.dim() == 2:
            self.found['costs of matching in Mask2Former'].add(result.dtype)
        return result


@contextmanager
def recorded(model, monkeypatch):
    """Record the dtypes for the rows of the table in the docs."""
    from swin_backbone.kernels.native import availability
    from swin_backbone.openmmlab.layers import roi_extractor

    recorder = Recorder({81, 9, 151})
    results = recorder.found

    def keep(row):
        def hook(_module, _args, result):
            for x in tensors(result):
                results[row].add(x.dtype)

        return hook

    handles = [model.backbone.register_forward_hook(keep('maps that the Swin emits, behind their norms'))]
    for module in model.modules():
        if any(hasattr(module, name) for name in BEHIND_FORWARD):
            handles.append(module.register_forward_hook(keep("what a head's forward returns")))

    def align(maps_, rois, *rest):
        results['maps that RoIAlign reads'].add(maps_.dtype)
        results['corners of regions'].add(rois.dtype)
        return align_forward(maps_, rois, *rest)

    def nms(boxes, scores, **rest):
        results['boxes for NMS'].add(boxes.dtype)
        results['scores for NMS'].add(scores.dtype)
        return ext.nms(boxes, scores, **rest)

    align_forward = roi_extractor.roi_align_forward
    with monkeypatch.context() as patch, recorder:
        # The library leaves functions to a mode, which may change them. This mode changes none, and the table is about
        # the library.
        patch.setattr(availability, 'changes_functions', lambda: False)
        patch.setattr(roi_extractor, 'roi_align_forward', align)
        patch.setattr(import_module('mmcv.ops.nms'), 'ext_module', type('ours', (), dict(nms=staticmethod(nms))))
        yield results
    for handle in handles:
        handle.remove()


def tensors(value):
    return (one for _, one in walk(value) if isinstance(one, torch.Tensor))


def table():
    """Return the dtypes of the table's first column by row."""
    rows = re.findall(r'^\| (.+?) \| (float32|bfloat16) \|', TABLE.read_text(), re.MULTILINE)
    assert len(rows) == 11
    return {name: getattr(torch, dtype) for name, dtype in rows}


@pytest.mark.slow
def test_each_cell_of_the_table(monkeypatch):
    results = defaultdict(set)
    for family in FAMILIES:
        for row, dtypes in dtypes_of(swapped(PLACED[family]), family, monkeypatch).items():
            results[row] |= dtypes
    assert results == {row: {dtype} for row, dtype in table().items()}


@pytest.mark.parametrize('family', ['Mask R-CNN', 'UPerNet'])
def test_cells_of_a_detector_and_a_segmentor(family, monkeypatch):
    for row, dtypes in dtypes_of(small_config(PLACED[family]), family, monkeypatch).items():
        assert dtypes == {table()[row]}, row


def dtypes_of(cfg, family, monkeypatch):
    """Return the dtypes for all rows of the table, in a prediction and a step of training."""
    cfg.optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1e-3))
    # Not smaller: torch's bfloat16 gradient of a 3x3 convolution with stride 2 on a map of 1x1 pixels is not finite
    model, data = build(cfg, side=SIDE), pictures_and_truth(cfg, side=SIDE)
    accelerate(model)
    with recorded(model, monkeypatch) as results:
        with mixed_precision(model):
            samples = predict(cfg, model, copy.deepcopy(data))
        assert len(samples) == 2
        model.train()
        prepared = model.data_preprocessor(data, True)
        with mixed_precision(model):
            losses = model(**prepared, mode='loss')
    for name, loss in losses.items():
        for x in tensors(loss):
            if 'loss' in name:
                results['each loss'].add(x.dtype)
    total, _ = model.parse_losses(losses)
    total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            results['parameters and gradients'] |= {parameter.dtype, parameter.grad.dtype}
            assert parameter.grad.isfinite().all(), (name, family)
    return {
        row: dtypes for row, dtypes in results.items() if row != 'costs of matching in Mask2Former' or 'Mask2' in family
    }


@pytest.mark.slow
@pytest.mark.parametrize('family', PLACED)
def test_every_family_predicts_and_trains(family):
    cfg = swapped(PLACED[family])
    if 'Wrapper' in cfg.optim_wrapper.get('type', 'OptimWrapper'):
        cfg.optim_wrapper.type = 'Bfloat16OptimWrapper'
    for key in ('loss_scale', 'dtype'):
        cfg.optim_wrapper.pop(key, None)
    model, data = build(cfg), pictures_and_truth(cfg)
    accelerate(model)
    with mixed_precision(model):
        predict(cfg, model, copy.deepcopy(data))
    losses, _ = train_one_step(cfg, model, data)
    assert all(value.isfinite() for value in losses.values())


@pytest.mark.parametrize(
    ('dtype', 'behind'), [('bfloat16', torch.float32), ('float16', torch.float16), ('auto', torch.float16)]
)
def test_on_a_gpu_bfloat16_has_float32_in_kernels(monkeypatch, dtype, behind):
    """mmcv's and torchvision's kernels for GPUs take float16, and no bfloat16. `meta` stands for a GPU."""

    class Head(nn.Linear):
        def loss_by_feat(self, x):
            return x.sum()

    class Extractor(nn.Module):
        roi_layers = ()

        def forward(self, x):
            return x

    entered = []
    monkeypatch.setattr(torch, 'autocast', lambda *settings, **more: entered.append(settings) or nullcontext())
    model = nn.ModuleDict(dict(head=Head(3, 2), extractor=Extractor())).to('meta')
    x = torch.ones(1, 3, device='meta', dtype=torch.bfloat16 if dtype == 'bfloat16' else torch.float16)
    model.to(x.dtype)
    with mixed_precision(model, dtype):
        assert model.head(x).dtype == behind
        assert model.extractor(x).dtype == behind
        assert model.head.loss_by_feat(x).dtype == behind
    assert entered[0] == ('meta', x.dtype)
    assert {device for device, *_ in entered} == {'meta'}


@pytest.mark.parametrize(('dtype', 'error'), [('float16', ValueError), ('float32', ValueError), (None, TypeError)])
def test_a_dtype_that_a_cpu_does_not_take(dtype, error):
    with pytest.raises(error, match='dtype'), mixed_precision(nn.Linear(2, 2), dtype):
        pass


def test_afterwards_and_in_a_copy_methods_are_the_modules_own():
    model = build(swapped(PLACED['RetinaNet']), initialise=False)
    head = model.bbox_head
    with mixed_precision(model):
        other = copy.deepcopy(model).bbox_head
        assert other.forward.__self__ is other
        assert 'forward' in vars(head)
        with mixed_precision(model):
            pass
        assert 'forward' in vars(head)
    assert not {'forward', *BEHIND_FORWARD} & set(vars(head))


@pytest.mark.parametrize('grad', [True, False])
def test_weights_that_change_while_it_lasts_are_used(grad):
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    with mixed_precision(model), torch.set_grad_enabled(grad):
        before = model(x)
        with torch.no_grad():
            model.weight += 1  # like an optimizer's step
        torch.testing.assert_close(model(x) - before, torch.full((1, 2), 3.0), atol=0.05, rtol=0, check_dtype=False)


def test_a_test_casts_each_weight_once():
    """Each forward cast all weights, and a head on several levels once for each level."""
    model, x, hook = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.ones(1, 3), MixedPrecisionHook()
    runner = SimpleNamespace(model=model)
    for change in (0, 1):
        with torch.no_grad():
            model[1].bias += change
            hook.before_test_epoch(runner)
            with Traffic() as traffic:
                for _ in range(3):
                    with torch.autocast('cpu', torch.bfloat16, cache_enabled=torch.is_autocast_cache_enabled()):
                        seen = model(model(x))  # as mmengine's loop of a test
            hook.after_test_epoch(runner)
            assert traffic.kernels['_to_copy'] == 4 + 3  # weights and biases; inputs
            torch.testing.assert_close(seen.float(), model(model(x)), atol=0.05, rtol=0.05)


def test_kept_casts_end_with_the_context():
    """An autocast around it, as of a user's own loop, kept them, and the next prediction had the old weights."""
    model, x, seen = nn.Linear(3, 2), torch.ones(1, 3), []
    with torch.autocast('cpu', torch.bfloat16), torch.no_grad():
        for _ in range(2):
            with mixed_precision(model, keep_casts=True):
                seen.append(model(x).float())
            model.weight += 1
    torch.testing.assert_close(seen[1] - seen[0], torch.full((1, 2), 3.0), atol=0.05, rtol=0)


def test_one_model_in_several_threads():
    """The first context that ends changes nothing for the remaining contexts."""

    class Head(nn.Linear):
        def loss_by_feat(self, x):
            return x

    head, x = Head(64, 64), torch.randn(3, 64)
    given = head.forward = lambda x: nn.functional.linear(x, head.weight)
    all_are_inside, one_is_out = threading.Barrier(3), threading.Event()

    def call(is_first):
        with mixed_precision(head):
            all_are_inside.wait(60)
            if is_first:
                return None
            one_is_out.wait(60)
            y = head(x)
            return y, head.loss_by_feat(y.bfloat16())

    with ThreadPoolExecutor(3) as pool:
        first, *others = [pool.submit(call, number == 0) for number in range(3)]
        first.result(60)
        one_is_out.set()
        for other in others:
            y, behind = other.result(60)
            assert y.dtype == behind.dtype == torch.float32
            assert torch.equal(y, y.bfloat16().float())  # computed in bfloat16
    assert head.forward is given
    assert 'loss_by_feat' not in vars(head)
