"""Exchange checkpoints of Swin V2 with the code of the origins, in both directions, and compare the outputs.

The outputs are equal for inputs that divide evenly into windows. timm shifts before padding. On uneven inputs, tokens
of far edges meet in timm. For uneven inputs the truth is
`tests/helpers/reference.py`.
"""

import pytest
import torch
import torch.nn.functional as F
from helpers.models.small_v2_models import nano, saved, with_random_weights

from swin_backbone import convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import read_checkpoint
from swin_backbone.compat import import_torchvision

pytestmark = pytest.mark.peer

MISSING = "{} is not installed: pip install -e '.[peers]'"
DEPTHS, HEADS, WIDTH = (2, 2, 2, 2), (2, 4, 8, 16), 32
SIDE = 128  # maps of 32, 16, 8 and 4


def normalised(outputs):
    """Apply a norm with weight 1 and bias 0. The backbone has output norms; the origin has no output norms."""
    return [F.layer_norm(x_BHWC, x_BHWC.shape[-1:]).permute(0, 3, 1, 2) for x_BHWC in outputs]


def assert_equal(outputs, expected):
    assert len(outputs) == len(expected) == 4
    for output, other in zip(outputs, expected):
        torch.testing.assert_close(output, other, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope='module')
def timm():
    import_torchvision()  # before timm
    return pytest.importorskip('timm', reason=MISSING.format('timm'))


@pytest.fixture(scope='module')
def transformers():
    return pytest.importorskip('transformers', reason=MISSING.format('transformers'))


def timm_model(timm, window=8, pretrained=(0, 0, 0, 0)):
    return with_random_weights(
        timm.models.swin_transformer_v2.SwinTransformerV2(
            img_size=SIDE, embed_dim=WIDTH, depths=DEPTHS, num_heads=HEADS, window_size=window,
            pretrained_window_sizes=pretrained,
        )
    )  # fmt: skip


def timm_outputs(model, x):
    outputs, y_BHWC = [], model.patch_embed(x)
    for layer in model.layers:
        y_BHWC = layer(y_BHWC)
        outputs.append(y_BHWC)
    return normalised(outputs)


@pytest.mark.parametrize(('window', 'pretrained'), [(8, (0, 0, 0, 0)), (16, (12, 12, 12, 6))])
@torch.no_grad()
def test_timm(tmp_path, timm, window, pretrained):
    """With window 16 and weights of window 12, maps of later stages are smaller than the window."""
    model = timm_model(timm, window, pretrained)
    backbone = nano(window_size=window, pretrained_window_sizes=pretrained)
    report = load_checkpoint(backbone, saved(model, tmp_path / 'timm.pth'))
    assert report.origin == 'timm, Swin V2'
    assert all(name.startswith('norm') for name in report.missing)
    x = torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)
    assert_equal(backbone(x), timm_outputs(model, x))


@torch.no_grad()
def test_timm_loads_what_is_written_for_it(tmp_path, timm):
    model = timm_model(timm)
    convert_checkpoint(saved(model, tmp_path / 'timm.pth'), tmp_path / 'official.pth', 'official')
    convert_checkpoint(tmp_path / 'official.pth', tmp_path / 'back.pth', 'timm')
    back = torch.load(tmp_path / 'back.pth', weights_only=True)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in back.items())
    # timm's own conversion of the official format checks the names.
    filtered = timm.models.swin_transformer_v2.checkpoint_filter_fn(read_checkpoint(tmp_path / 'official.pth'), model)
    assert filtered.keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in filtered.items())


def hugging_face_model(transformers, window=8, pretrained=(0, 0, 0, 0)):
    stages = [f'stage{number}' for number in (1, 2, 3, 4)]
    config = transformers.Swinv2Config(
        image_size=SIDE, embed_dim=WIDTH, depths=DEPTHS, num_heads=HEADS, window_size=window, out_features=stages,
        pretrained_window_sizes=pretrained,
    )  # fmt: skip
    return with_random_weights(transformers.Swinv2Backbone(config))


@pytest.mark.parametrize(('window', 'pretrained'), [(8, (0, 0, 0, 0)), (16, (12, 12, 12, 6))])
@torch.no_grad()
def test_transformers(tmp_path, transformers, window, pretrained):
    model = hugging_face_model(transformers, window, pretrained)
    model.save_pretrained(tmp_path)
    backbone = nano(window_size=window, pretrained_window_sizes=pretrained)
    report = load_checkpoint(backbone, tmp_path / 'model.safetensors')
    assert report.origin == 'Hugging Face, Swin V2'
    x = torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)
    assert_equal(backbone(x), normalised([x.permute(0, 2, 3, 1) for x in model(x).feature_maps]))


@torch.no_grad()
def test_transformers_loads_what_is_written_for_it(tmp_path, transformers):
    model = hugging_face_model(transformers)
    convert_checkpoint(saved(model, tmp_path / 'hf.pth'), tmp_path / 'ours.pth', 'mmdet')
    model.config.save_pretrained(tmp_path / 'hf')
    convert_checkpoint(tmp_path / 'ours.pth', tmp_path / 'hf' / 'model.safetensors', 'hf')
    fresh = transformers.Swinv2Backbone.from_pretrained(tmp_path / 'hf')
    state = model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in fresh.state_dict().items())


@pytest.mark.parametrize('fault', [True, False])
@torch.no_grad()
def test_the_far_edge_reaches_the_near_one_in_timm_and_not_here(timm, fault):
    """Run a shifted block on a 14x14 map with windows of 8. timm pads after the roll."""
    block = (timm_model(timm).layers[0] if fault else nano().stages[0]).blocks[1]
    with_random_weights(block)
    x_BHWC = torch.randn(1, 14, 14, WIDTH, dtype=torch.float64)
    changed = x_BHWC.clone()
    changed[:, -1, -1] += 1.0
    if fault:  # compute the mask for this map size
        block.dynamic_mask = True
    reached = (block(changed) - block(x_BHWC)).abs().sum(-1)[0, :4, :4].max()
    assert (reached > 1e-6) == fault
