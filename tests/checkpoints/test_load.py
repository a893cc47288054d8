"""Load weights at different sizes. Check errors and reports."""

import ast
import itertools
import json
import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers.checkpoints.origins import (
    hugging_face,
    mmdet_backbone,
    mmpretrain,
    official,
    official_backbone,
    position_index,
    simmim,
    timm,
)
from helpers.models.small_models import Detector, lines, randomised

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import FORMATS, CheckpointError
from swin_backbone.checkpoints.load import adapt_weights
from swin_backbone.models.simmim import SimMIMSwinBackbone

TABLE = 'stages.1.blocks.0.attn.w_msa.relative_position_bias_table'


@pytest.fixture
def weights(tmp_path):
    return tmp_path / 'weights.pth'


def nano(**arguments):
    return SwinBackbone(arch='nano', **arguments)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
@pytest.mark.parametrize('window', [4, (12, 5)])
def test_bias_tables_follow_the_official_rule_for_another_window(weights, window, dtype):
    """Resize a table with bicubic F.interpolate, one image for each head, like microsoft/Swin-Transformer."""
    source = {key: value.to(dtype) for key, value in randomised().state_dict().items()}
    torch.save(official(source), weights)
    backbone = nano(window_size=window)
    report = load_checkpoint(backbone, weights)
    height, width = backbone.window_size[1]
    image_1hYX = source[TABLE].float().t().view(1, 4, 13, 13)
    resized = F.interpolate(image_1hYX, size=(2 * height - 1, 2 * width - 1), mode='bicubic').to(dtype).float()
    assert torch.equal(backbone.state_dict()[TABLE], resized.view(4, -1).t())
    assert len(report.resized) == 8
    assert not report.warnings  # the window is an argument
    assert backbone.norm0.weight.dtype == torch.float32


S3 = (7, 7, 14, 7)  # windows of timm's swin_s3_tiny_224 and swin_s3_base_224
TWO = dict(depths=(1, 1), num_heads=(2, 4), out_indices=(0, 1))


@pytest.mark.parametrize(
    ('trained', 'window', 'advice'),
    [
        (S3, S3, None),
        (S3, 7, '((7, 7), (7, 7), (14, 14), (7, 7))'),
        (S3, (7, 7, 12, 7), '((7, 7), (7, 7), (14, 14), (7, 7))'),
        (7, S3, None),
        (12, 7, '(12, 12)'),
        (12, 6, None),
        (((5, 5), (8, 8)), ((7, 7), (7, 7)), '((5, 5), (8, 8))'),
    ],
)
def test_an_unrequested_resize_is_a_warning(weights, trained, window, advice):
    arguments = TWO if len(str(trained)) == 16 else {}
    source = randomised(window_size=trained, **arguments)
    torch.save(source.state_dict(), weights)
    backbone = nano(window_size=window, **arguments)
    report = load_checkpoint(backbone, weights)
    assert [warning.partition('window_size=')[2] for warning in report.warnings] == ([advice] if advice else [])
    assert bool(report.resized) == (trained != window)
    if advice:
        as_trained = nano(window_size=ast.literal_eval(advice), **arguments)
        assert as_trained.window_size == source.window_size


def test_an_index_table_tells_a_square_from_a_rectangle(weights):
    """A table of 225 rows is for 8 x 8 or 5 x 13."""
    state = dict(randomised(window_size=8).state_dict())  # without sizes
    torch.save(state, weights)
    backbone = nano(window_size=(5, 13))
    load_checkpoint(backbone, weights)
    assert torch.equal(backbone.state_dict()[TABLE], state[TABLE])
    tables = {key: position_index(8) for key in state if key.endswith('bias_table')}
    torch.save(state | {key.replace('bias_table', 'index'): index for key, index in tables.items()}, weights)
    report = load_checkpoint(backbone, weights)
    assert len(report.resized) == 8


@pytest.mark.parametrize('window', [(1, 7), (7, 1)])
def test_the_index_of_a_window_of_one_row_tells_no_window(weights, window):
    """Windows 1x7 and 7x1 have equal indices, and tables of equal shapes."""
    places = torch.arange(7)
    state = dict(randomised(window_size=(1, 7)).state_dict())  # without sizes
    index = places[:, None] - places + 6
    torch.save(state | {key.replace('bias_table', 'index'): index for key in state if 'bias_table' in key}, weights)
    backbone = nano(window_size=window)
    report = load_checkpoint(backbone, weights)
    assert any(warning.startswith('The bias tables count as those of the windows') for warning in report.warnings)
    assert torch.equal(backbone.state_dict()[TABLE], state[TABLE])
    with pytest.raises(CheckpointError, match='13 rows is for no square window'):
        load_checkpoint(nano(), weights)


def test_a_rectangle_without_its_window_is_an_error(weights):
    source = randomised(window_size=(7, 12))
    torch.save(dict(source.state_dict()), weights)
    same = nano(window_size=(7, 12))
    load_checkpoint(same, weights)
    assert torch.equal(same.state_dict()[TABLE], source.state_dict()[TABLE])
    with pytest.raises(CheckpointError, match='299 rows is for no square window'):
        load_checkpoint(nano(), weights)


def saved_by_the_tools(model, path):
    pytest.importorskip('mmengine', reason='mmengine is not installed')
    from swin_backbone.workbench.resume.checkpoint_hook import WholeCheckpointHook

    checkpoint = dict(state_dict=model.state_dict())
    runner = SimpleNamespace(model=model, train_dataloader=SimpleNamespace(dataset=None))
    WholeCheckpointHook().before_save_checkpoint(runner, checkpoint)
    torch.save(checkpoint, path)


def test_our_checkpoints_name_their_rectangles(weights, tmp_path):
    """81 rows are for 5 x 5 or 2 x 14, and 256 patches for 16 x 16 or 8 x 32."""
    arguments = dict(window_size=(2, 14), use_abs_pos_embed=True, pretrain_img_size=(32, 128))
    source = randomised(**arguments)
    saved_by_the_tools(Detector(source), weights)
    backbone = nano(use_abs_pos_embed=True, pretrain_img_size=64)
    report = load_checkpoint(backbone, weights)
    changes = {'position embedding from 8x32 to 16x16', 'bias tables from window 2x14 to 7x7'}
    assert set(report.resized.values()) == changes
    (warning,) = report.warnings
    assert warning.endswith('As the checkpoint was trained: window_size=(2, 14)')
    assert not load_checkpoint(nano(**arguments), weights).resized
    convert_checkpoint(weights, tmp_path / 'tv.pth', to='torchvision')
    assert set(load_checkpoint(nano(), tmp_path / 'tv.pth').resized.values()) == {'bias tables from window 2x14 to 7x7'}


def test_a_window_of_swin_v2_in_our_checkpoint(weights, tmp_path):
    small = dict(arch='nano', window_size=4)
    saved_by_the_tools(randomised(kind=SwinV2Backbone, **small), weights)
    assert not load_checkpoint(SwinV2Backbone(**small), weights).warnings
    (warning,) = load_checkpoint(SwinV2Backbone(arch='nano', window_size=8), weights).warnings
    assert warning.endswith('set pretrained_window_sizes')
    fitting = SwinV2Backbone(arch='nano', window_size=8, pretrained_window_sizes=(4, 4, 4, 4))
    assert not load_checkpoint(fitting, weights).warnings
    convert_checkpoint(weights, tmp_path / 'folder', to='hf')
    assert json.loads((tmp_path / 'folder' / 'config.json').read_text())['window_size'] == 4


@pytest.mark.parametrize('sizes', [3, {}, dict(window_size=7, map_size='ab'), dict(window_size=['a', (0, 7), (7,)])])
def test_sizes_that_are_none_are_left_out(weights, sizes, record_fault):
    state = randomised(use_abs_pos_embed=True).state_dict()
    state._metadata['']['swin_backbone'] = sizes
    state._metadata['stages'] = 'no dict'
    torch.save(state, weights)
    assert not load_checkpoint(nano(use_abs_pos_embed=True), weights).resized
    record_fault('damages')


def test_a_guess_of_a_square_is_a_warning(weights):
    arguments = dict(window_size=(2, 14), use_abs_pos_embed=True, pretrain_img_size=(32, 128))
    torch.save(dict(randomised(**arguments).state_dict()), weights)  # without sizes
    about_tables, about_map = load_checkpoint(nano(**arguments), weights).warnings
    assert about_map.startswith('absolute_pos_embed counts as the 8x32 patches of a rectangle')
    assert about_tables.startswith('The bias tables count as those of the windows ((2, 14), (2, 14), (2, 14), (2, 14))')
    about_tables, about_map = load_checkpoint(nano(use_abs_pos_embed=True), weights).warnings
    assert about_map.startswith('absolute_pos_embed counts as the 16x16 patches of a square')
    assert 'if with square windows, which the file does not name: window_size=(5, 5)' in about_tables


@pytest.mark.parametrize(('inner', 'wrapper'), [('', 'module.'), ('', '_orig_mod.'), ('module.', 'module.module.')])
@pytest.mark.parametrize('order', [1, -1])
def test_a_name_with_and_without_a_wrapper(weights, inner, wrapper, order):
    """The shorter names are loaded, and the report counts the others."""
    source, other = Detector(randomised()).state_dict(), Detector(randomised()).state_dict()
    entries = [(f'{inner}{key}', value) for key, value in source.items()]
    entries += [(f'{wrapper}{key}', value) for key, value in other.items()]
    torch.save(dict(entries[::order]), weights)
    detector = Detector(nano())
    report = load_checkpoint(detector, weights)
    assert all(torch.equal(value, source[key]) for key, value in detector.state_dict().items())
    ignored = [key for names in report.ignored.values() for key in names]
    assert sorted(ignored) == sorted(f'{wrapper}{key}' for key in source)


def test_a_stem_of_several_convolutions_is_an_error(weights):
    state = official_backbone(randomised().state_dict())
    for name, value in (('0.weight', torch.rand(32, 3, 3, 3)), ('1.num_batches_tracked', torch.tensor(3))):
        state[f'patch_embed.proj.{name}'] = value
    del state['patch_embed.proj.weight'], state['patch_embed.proj.bias']
    torch.save(state, weights)
    message = 'no patch_embed.projection.weight, the one convolution .*patch_embed.proj.0.weight'
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(nano(), weights)


@pytest.mark.parametrize('key', ['norm3.weight', 'neck.fpn.weight', 'neck.norm.running_var'])
def test_a_number_beyond_the_dtype_of_the_model_is_an_error(weights, key, record_fault):
    detector = Detector(randomised())
    detector.neck.norm = torch.nn.BatchNorm2d(2)
    state = detector.state_dict()
    key = key if key in state else f'backbone.{key}'
    state[key].view(-1)[0] = -7e4
    torch.save(state, weights)
    with pytest.raises(CheckpointError, match=rf'{key} has numbers up to 70000, and the torch.float16 of the model'):
        load_checkpoint(detector.half(), weights)
    for dtype in (torch.bfloat16, torch.float32):
        load_checkpoint(detector.to(dtype), weights)
    record_fault('damages')


def test_another_image_size_resizes_the_position_embedding(weights):
    source = randomised(use_abs_pos_embed=True, pretrain_img_size=32)
    torch.save(official(source.state_dict()), weights)
    backbone = nano(use_abs_pos_embed=True, pretrain_img_size=(64, 48))
    report = load_checkpoint(backbone, weights)
    embedding_1CHW = source.absolute_pos_embed.reshape(1, 8, 8, 32).permute(0, 3, 1, 2)
    resized = F.interpolate(embedding_1CHW, size=(16, 12), mode='bicubic')
    assert torch.equal(backbone.absolute_pos_embed, resized.permute(0, 2, 3, 1).flatten(1, 2))
    assert report.resized == {'absolute_pos_embed': 'position embedding from 8x8 to 16x12'}


@pytest.mark.parametrize(('old', 'channels'), [(3, 1), (3, 2), (3, 3), (3, 4), (3, 6), (1, 3)])
@torch.no_grad()
def test_other_input_channels_keep_the_response_to_a_grey_image(weights, old, channels):
    source = randomised(in_channels=old)
    torch.save(official(source.state_dict()), weights)
    backbone = nano(in_channels=channels).eval()
    report = load_checkpoint(backbone, weights)
    assert ('patch_embed.projection.weight' in report.resized) == (channels != old)
    grey = torch.randn(1, 1, 40, 44)
    projected, expected = (m.patch_embed.projection(grey.expand(-1, m.in_channels, -1, -1)) for m in (backbone, source))
    torch.testing.assert_close(projected, expected)
    if channels > old:  # source channels repeat in turn
        weight, repeated = backbone.patch_embed.projection.weight, source.patch_embed.projection.weight
        shares = torch.tensor([len(range(c % old, channels, old)) for c in range(channels)]).view(1, -1, 1, 1)
        torch.testing.assert_close(weight * shares, repeated[:, [c % old for c in range(channels)]])


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(embed_dims=64), r'a Swin of width 64, .*; the backbone has width 32, '),
        (dict(depths=(2, 2, 6, 2)), r'depths \(2, 2, 6, 2\).*; the backbone has width 32, depths \(2, 2, 2, 2\)'),
        (dict(num_heads=(1, 2, 4, 8)), r'heads \(1, 2, 4, 8\); the backbone .* heads \(2, 4, 8, 16\)'),
        (dict(mlp_ratio=2), r'ffn\.layers\.0\.0\.weight has shape \(64, 32\), the backbone takes \(128, 32\)'),
    ],
)
def test_another_shape_is_an_error_and_changes_nothing(weights, arguments, message):
    torch.save(official(randomised(**arguments).state_dict()), weights)
    for model in (nano(), Detector(nano())):
        before = {key: value.clone() for key, value in model.state_dict().items()}
        with pytest.raises(CheckpointError, match=message) as error:
            load_checkpoint(model, weights)
        assert str(weights) in str(error.value)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ('state', 'message'),
    [
        (
            {'state_dict': {'conv1.weight': torch.zeros(1)}},
            r"no weight of a Swin Transformer under a known name; .*\['conv1.weight'\]",
        ),
        ({'layers.0.blocks.0.attn.logit_scale': torch.zeros(1)}, 'Swin V2'),
        ({'state_dict': {}, 'meta': {}}, 'no weights: a dict of tensors was expected, it is a dict'),
        ([torch.zeros(1)], 'it is a list'),
    ],
)
def test_nothing_to_load_is_an_error(weights, state, message):
    torch.save(state, weights)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(nano(), weights)


def test_a_model_without_a_swin_is_an_error(weights):
    with pytest.raises(ValueError, match='got a Linear without'):
        load_checkpoint(torch.nn.Linear(1, 1), weights)


def test_what_stays_random_is_named_in_a_warning(weights, log):
    state = randomised().state_dict()
    del state['norm2.bias'], state['stages.0.blocks.1.attn.w_msa.qkv.bias']
    torch.save(state, weights)
    nano(pretrained=str(weights)).init_weights()
    (warning,) = lines(log, 'WARNING')
    assert warning == 'Left at their initialisation: stages.0.blocks.1.attn.w_msa.qkv.bias, norm2.bias'


def test_what_the_backbone_has_no_place_for_is_a_warning(weights, log):
    torch.save(official_backbone(randomised(use_abs_pos_embed=True).state_dict()), weights)
    report = load_checkpoint(nano(out_indices=(1, 3)), weights)
    assert report.ignored['norms of outputs that the backbone does not emit'][:2] == ['norm0.weight', 'norm0.bias']
    assert report.ignored['the backbone has no such weight'] == ['absolute_pos_embed']
    (warning,) = lines(log, 'WARNING')
    assert warning.startswith('The checkpoint has absolute_pos_embed, the backbone has not')


def test_a_head_of_another_shape_is_left_alone_and_named(weights, log):
    detector = Detector(randomised())
    torch.save({'state_dict': {**detector.state_dict(), 'neck.fpn.weight': torch.zeros(5)}}, weights)
    report = load_checkpoint(Detector(nano()), weights)
    assert not report.missing
    assert lines(log, 'WARNING')[0] == (
        'neck.fpn.weight has shape (5,) in the checkpoint and (2,) in the model: it was not loaded'
    )


class Versioned(torch.nn.Linear):
    _version = 3

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        self.version_in_file = local_metadata.get('version')
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_modules_get_the_version_they_were_saved_with(weights):
    """Modules of mmdet and mmcv read the version to rename weights of older versions."""
    detector = Detector(nano())
    detector.neck.fpn = Versioned(2, 1)
    torch.save({'state_dict': detector.state_dict()}, weights)
    load_checkpoint(detector, weights)
    assert detector.neck.fpn.version_in_file == 3


def test_a_path_may_be_a_string_a_path_or_a_file_address(weights):
    torch.save(randomised().state_dict(), weights)
    for checkpoint in (str(weights), weights, weights.as_uri()):
        assert not load_checkpoint(nano(), checkpoint).missing


def test_strict_loading_ignores_index_tables():
    backbone = nano()
    state = mmdet_backbone(backbone.state_dict())
    backbone.load_state_dict(dict(state), strict=True)
    Detector(backbone).load_state_dict(
        {'neck.fpn.weight': torch.zeros(2), **{f'backbone.{key}': value for key, value in state.items()}}, strict=True
    )


@pytest.mark.parametrize('small_map', ['pad', 'shrink'])
def test_a_classifiers_weights_are_said_to_be_so(weights, small_map):
    torch.save(randomised().state_dict(), weights)  # weights of a detector's backbone
    assert not load_checkpoint(nano(small_map=small_map), weights).notes
    torch.save(official(randomised().state_dict()), weights)
    notes = load_checkpoint(nano(small_map=small_map), weights).notes
    assert [note for note in notes if "small_map='shrink'" in note] == notes
    assert len(notes) == (small_map == 'pad')


@pytest.mark.parametrize('key', ['backbone.patch_embed.norm.bias', f'backbone.{TABLE}', 'neck.fpn.weight'])
@pytest.mark.parametrize('dtype', [torch.int8, torch.float8_e4m3fn])
def test_quantised_weights_are_an_error(key, dtype, record_fault):
    """torch would copy the numbers without the scales."""
    source, detector = Detector(randomised()).state_dict(), Detector(nano(window_size=8))
    with pytest.raises(CheckpointError, match=rf'a\.pth.*{key.removeprefix("backbone.")} is stored as {dtype}'):
        adapt_weights(detector, {**source, key: source[key].to(dtype)}, 'a.pth')
    record_fault('damages')


WRAPPERS = ('module', '_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module')
WRAPPED = ('', r'backbone\.', r'stages\.\d\.', r'stages\.2\.', r'blocks\.1\.', r'neck\.')


def test_names_of_wrapped_layers():
    """torch.compile, FSDP and checkpointing of blocks insert a part into the names."""
    source, detector = Detector(randomised()).state_dict(), Detector(nano())
    for wrapper, wrapped in itertools.product(WRAPPERS, WRAPPED):
        insert = re.compile(f'({wrapped})(.*)')
        state = {insert.sub(rf'\1{wrapper}.\2', key, count=1): value for key, value in source.items()}
        assert state.keys() != source.keys()
        fitted, report = adapt_weights(detector, state, 'a.pth')
        assert not report.missing + report.missing_elsewhere
        assert all(torch.equal(value, fitted[key]) for key, value in source.items())


@pytest.mark.parametrize('part', ['', 'backbone.stages.2.blocks.1', 'neck'])
@pytest.mark.parametrize('wrap', [torch.compile, torch.nn.DataParallel])
def test_into_a_model_with_wrapped_layers(weights, wrap, part):
    source, detector = Detector(randomised()), Detector(nano())
    torch.save(source.state_dict(), weights)
    owner, _, name = part.rpartition('.')
    model = detector
    if part:
        setattr(detector.get_submodule(owner), name, wrap(detector.get_submodule(part)))
    else:
        model = wrap(detector)
    report = load_checkpoint(model, weights)
    assert not report.missing + report.missing_elsewhere
    assert not report.ignored
    assert set(report.loaded) == set(model.state_dict())
    for ours, theirs in zip(model.state_dict().values(), source.state_dict().values()):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize('prefix', ['', 'backbone.'])
@pytest.mark.parametrize('kind', [SwinBackbone, SwinMLPBackbone])
def test_a_window_and_its_transpose(weights, kind, prefix):
    """Tables of windows 4x8 and 8x4 have equal shapes. The state_dict has the windows."""
    one, other = (kind(arch='nano', window_size=window).eval() for window in ((4, 8), (8, 4)))
    if prefix:
        one, other = Detector(one), Detector(other)
    torch.save(one.state_dict(), weights)
    with pytest.raises(RuntimeError, match=rf'{prefix}stages.* is for \(4, 8\), and the backbone has \(8, 4\)'):
        other.load_state_dict(torch.load(weights))
    if kind is SwinMLPBackbone:
        with pytest.raises(CheckpointError, match=r'it is a Swin-MLP of windows \(\(4, 8\), .* has \(\(8, 4\), '):
            load_checkpoint(other, weights)
        return
    assert set(load_checkpoint(other, weights).resized.values()) == {'bias tables from window 4x8 to 8x4'}
    one.load_state_dict(torch.load(weights))
    other.load_state_dict(other.state_dict())


def test_a_position_embedding_and_its_transpose(weights):
    one, other = (nano(use_abs_pos_embed=True, pretrain_img_size=size) for size in ((32, 64), (64, 32)))
    torch.save(one.state_dict(), weights)
    with pytest.raises(RuntimeError, match=r'absolute_pos_embed is for \(8, 16\), and the backbone has \(16, 8\)'):
        other.load_state_dict(torch.load(weights))
    assert load_checkpoint(other, weights).resized == {'absolute_pos_embed': 'position embedding from 8x16 to 16x8'}


ODD = {
    'sparse': (torch.Tensor.to_sparse, r'\S+ is a tensor of layout torch\.sparse_coo'),
    'rows': (lambda value: value.to_sparse_csr() if value.dim() == 2 else value, r'\S+ is .* torch\.sparse_csr'),
    'meta': (lambda value: value.to('meta'), r'\S+ is on the meta device, without numbers'),
    'no axes': (torch.Tensor.mean, r'\S+ has shape \(\), and weights of a Swin have axes'),
    'no channels': (lambda value: value[:, :0] if value.dim() == 4 else value, r'\S+ has shape \(32, 0, 4, 4\), and'),
    'no axes, integers': (lambda value: torch.tensor(3), r'\S+ has shape \(\), and weights of a Swin have axes'),
    'one axis': (torch.Tensor.flatten, r'it has no patch_embed\.projection\.weight'),
    'nothing': (lambda value: value[:0], r'\S+ has shape \(0\S.*, and weights of a Swin have axes and numbers'),
    'an axis more': (lambda value: value[None], r'it has no|has shape'),
}


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone, SwinMLPBackbone])
@pytest.mark.parametrize('odd', ODD)
def test_odd_tensors_are_one_sentence(tmp_path, weights, record_fault, kind, odd):
    change, message = ODD[odd]
    backbone = kind(arch='nano', depths=(1, 1), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1))
    torch.save({key: change(value) for key, value in backbone.state_dict().items()}, weights)
    for attempt in (
        lambda: load_checkpoint(backbone, weights),
        lambda: convert_checkpoint(weights, tmp_path / 'out.pth', 'official'),
    ):
        with pytest.raises(CheckpointError, match=r'weights\.pth') as error:
            attempt()
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(backbone, weights)
    record_fault('damages')


def test_weights_under_unknown_names_are_named(weights, log):
    """Missing and unused weights of equal shapes are named together."""
    state = Detector(randomised()).state_dict()
    renamed = {key.replace('attn.w_msa.proj', 'attn.out').replace('neck.fpn', 'fpn.0'): v for key, v in state.items()}
    torch.save(renamed, weights)
    report = load_checkpoint(Detector(nano()), weights)
    assert len(report.renamed) == 8 * 2 + 1
    assert report.renamed['backbone.stages.0.blocks.1.attn.w_msa.proj.bias'] == 'stages.0.blocks.1.attn.out.bias'
    assert report.renamed['neck.fpn.weight'] == 'fpn.0.weight'
    unknown, missing, elsewhere = lines(log, 'WARNING')
    assert unknown == (
        'The checkpoint has stages.0.blocks.0.attn.out.weight, stages.0.blocks.0.attn.out.bias, '
        'stages.0.blocks.1.attn.out.weight and 13 more, the backbone has not: its outputs will be others'
    )
    assert (
        '. Under unknown names the checkpoint has weights of these shapes: stages.0.blocks.0.attn.out.weight, '
        in missing
    )
    assert elsewhere == (
        'Outside the backbone, not in the checkpoint: neck.fpn.weight. Under unknown names the checkpoint has weights '
        'of these shapes: fpn.0.weight'
    )


@pytest.mark.parametrize('name', ['model_state_dict', 'my_model'])
def test_weights_under_a_name_of_ones_own(weights, name):
    source = randomised()
    moments = {'state': {0: {'exp_avg': torch.zeros(3)}}, 'param_groups': []}
    other = {key: value + 1 for key, value in source.state_dict().items()}
    torch.save({'epoch': 3, 'optimizer': moments, name: source.state_dict(), 'older': other}, weights)
    backbone = nano()
    load_checkpoint(backbone, weights)
    assert torch.equal(backbone.norm3.weight, source.norm3.weight)
    own = source.state_dict()
    for contents in (
        {name: other, f'{name}_ema': own},  # averaged weights first
        {'model': other, 'ema': {'module': own, 'updates': 3}},
        {'state_dict': own, 'ema_state_dict': other},  # of mmengine
        {'model': {'size': 'tiny'}, name: own},
    ):
        torch.save(contents, weights)
        load_checkpoint(backbone, weights)
        assert torch.equal(backbone.norm3.weight, source.norm3.weight)


@pytest.mark.parametrize('prefix', ['module.student.backbone.', 'student.module.backbone', 'student.backbone'])
def test_a_prefix_with_the_names_of_wrappers(weights, prefix):
    source, other = Detector(randomised()), Detector(randomised())
    state = {f'module.student.{key}': value for key, value in source.state_dict().items()}
    torch.save({**state, **{f'module.teacher.{key}': value for key, value in other.state_dict().items()}}, weights)
    backbone = nano()
    load_checkpoint(backbone, weights, prefix=prefix)
    assert torch.equal(backbone.norm3.weight, source.backbone.norm3.weight)


@pytest.mark.parametrize('save', [dict, lambda state: {f'backbone.{key}': state[key] for key in state}, simmim])
def test_simmim_goes_on_from_simmim(weights, save):
    """A model of SimMIM takes the mask token and the last norm; at another window too."""
    source = randomised(kind=SimMIMSwinBackbone)
    torch.save(saved := save(source.state_dict()), weights)
    backbone = SimMIMSwinBackbone(arch='nano', window_size=4)
    report = load_checkpoint(backbone, weights)
    assert not report.missing
    assert not any('mask_token' in name or 'norm3' in name for names in report.ignored.values() for name in names)
    saved = saved.get('model', saved)
    norm = next(saved[key] for key in saved if key.endswith(('norm3.weight', 'encoder.norm.weight')))
    assert torch.equal(backbone.norm3.weight, norm)
    assert torch.equal(backbone.mask_token, next(saved[key] for key in saved if key.endswith('mask_token')))


class WithScale(SwinBackbone):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.scale = torch.nn.Parameter(torch.zeros(4))


@pytest.mark.parametrize('prefix', ['', 'backbone.'])
def test_a_subclass_loads_parameters_of_its_own(weights, prefix):
    source, backbone = randomised(kind=WithScale), WithScale(arch='nano')
    torch.save({f'{prefix}{key}': value for key, value in source.state_dict().items()}, weights)
    report = load_checkpoint(backbone, weights)
    assert torch.equal(backbone.scale, source.scale)
    assert not report.missing
    assert not report.ignored


class Classifier(torch.nn.Module):
    """The names of mmpretrain's and timm's classifiers."""

    def __init__(self, classes=1000, outputs=(3,)):
        super().__init__()
        self.backbone = nano(out_indices=outputs)
        self.head = torch.nn.Module()
        self.head.fc = torch.nn.Linear(256, classes)


@pytest.mark.parametrize('classes', [1000, 5])
@pytest.mark.parametrize('save', [official, timm, mmpretrain])
def test_a_classifier_loads_the_last_norm_and_the_head_of_a_classifier(weights, log, save, classes):
    torch.save(saved := save(randomised().state_dict()), weights)
    classifier = Classifier(classes)
    report = load_checkpoint(classifier, weights)
    assert not report.missing
    assert report.missing_elsewhere == ([] if classes == 1000 else ['head.fc.weight', 'head.fc.bias'])
    saved = next((saved[name] for name in ('model', 'state_dict') if name in saved), saved)
    norm = saved.get('norm.weight', saved.get('backbone.norm3.weight'))
    assert torch.equal(classifier.backbone.norm3.weight, norm)
    head = {'head.fc.weight': (1000, 256), 'head.fc.bias': (1000,)}
    assert report.other_shapes == ({} if classes == 1000 else head)
    if classes == 1000:
        head = saved.get('head.weight', saved.get('head.fc.weight'))
        assert torch.equal(classifier.head.fc.weight, head)
        assert not report.ignored.keys() & {'classification norm', 'classification head'}
    else:
        first, *_, last = lines(log, 'WARNING')
        assert re.fullmatch(r'head.* has shape \(1000, 256\) in the checkpoint and \(5, 256\) in .*', first)
        assert 'not in the checkpoint' not in last


@pytest.mark.parametrize('outputs', [(3,), (2, 3)])
def test_a_head_of_an_equal_name_is_loaded(weights, outputs):
    """A linear layer `head` of the model, not timm's and mmpretrain's `head.fc`."""
    source, other = Classifier(outputs=outputs), Classifier(outputs=outputs)
    source.head, other.head = torch.nn.Linear(256, 5), torch.nn.Linear(256, 5)
    torch.save(source.state_dict(), weights)
    report = load_checkpoint(other, weights)
    assert torch.equal(other.head.weight, source.head.weight)
    assert not report.missing + report.missing_elsewhere
    assert not report.ignored


def test_a_bias_of_another_shape_is_left_alone_and_its_weight_is_loaded(weights):
    state = official(randomised().state_dict())['model']
    torch.save({**state, 'head.bias': torch.zeros(7)}, weights)
    report = load_checkpoint(classifier := Classifier(), weights)
    assert torch.equal(classifier.head.fc.weight, state['head.weight'])
    assert report.other_shapes == {'head.fc.bias': (7,)}
    assert report.ignored['classification head'] == ['head.bias']


@pytest.mark.parametrize('outputs', [(2, 3), (2,)])
def test_a_classifier_of_several_outputs_keeps_their_norms(weights, tmp_path, outputs):
    source, other = Classifier(outputs=outputs), Classifier(outputs=outputs)
    for stage in outputs:
        torch.nn.init.constant_(source.backbone.get_submodule(f'norm{stage}').weight, 2.0 + stage)
    torch.save(source.state_dict(), weights)
    convert_checkpoint(weights, tmp_path / 'timm.pth', 'timm')
    for path in (weights, tmp_path / 'timm.pth'):
        backbone = nano(out_indices=outputs)
        assert not load_checkpoint(backbone, path).missing
        report = load_checkpoint(other, path)
        assert not report.missing + report.missing_elsewhere
        assert torch.equal(other.head.fc.weight, source.head.fc.weight)
        for stage in outputs:
            for model in (backbone, other.backbone):
                assert (model.get_submodule(f'norm{stage}').weight == 2.0 + stage).all()


@pytest.mark.parametrize('change', [torch.flatten, lambda value: value[:, :-1], lambda value: value[None]])
@pytest.mark.parametrize('part', ['query', 'key', 'value'])
def test_a_query_a_key_and_a_value_that_do_not_fit_each_other(weights, part, change, record_fault):
    state = hugging_face(randomised().state_dict())
    name = f'swin.encoder.layers.1.blocks.0.attention.self.{part}.weight'
    torch.save({**state, name: change(state[name])}, weights)
    with pytest.raises(
        CheckpointError, match=r'1\.blocks\.0\S*query\.weight, and its key and value, have shapes \(.*\), '
    ):
        load_checkpoint(nano(), weights)
    record_fault('damages')


DAMAGED_TABLES = [
    torch.zeros(1, 0, 0, 2), torch.full((1, 3, 3, 2), 1e30), torch.full((1, 3, 3, 2), 1e-30), torch.tensor(3.0),
    torch.full((1, 3, 3, 2), torch.nan), torch.full((1, 3, 3, 2), -torch.inf), torch.zeros(1, 3, 3, 2) * 1j,
]  # fmt: skip


@pytest.mark.parametrize('number', range(len(DAMAGED_TABLES)))
@pytest.mark.parametrize('name', ['relative_coords_table', 'relative_position_index'])
def test_a_damaged_table_of_coordinates_does_not_stop_a_load(weights, name, number, record_fault):
    """The backbone computes these tables."""
    source = randomised(kind=SwinV2Backbone)
    state = {**source.state_dict(), f'stages.0.blocks.0.attn.w_msa.{name}': DAMAGED_TABLES[number]}
    torch.save(state, weights)
    backbone = SwinV2Backbone(arch='nano')
    load_checkpoint(backbone, weights)
    assert torch.equal(backbone.norm3.weight, source.norm3.weight)
    record_fault('damages')


@pytest.mark.parametrize('number', ['99999999999', '9' * 5000])
def test_a_stage_or_block_of_an_absurd_number_is_left_out(weights, number, record_fault):
    source, backbone = randomised(), nano()
    for name in (f'stages.{number}.blocks.0.norm1.bias', f'stages.0.blocks.{number}.norm1.bias'):
        torch.save({**source.state_dict(), name: torch.zeros(3)}, weights)
        report = load_checkpoint(backbone, weights)
        assert not report.missing
        assert report.ignored == {'the backbone has no such weight': [name]}
    record_fault('damages')


def test_a_table_that_is_not_for_the_window_in_the_file_is_damaged(weights, tmp_path, record_fault):
    state = randomised().state_dict()
    state[TABLE] = state[TABLE][1:]
    torch.save(state, weights)
    attempts = [lambda: load_checkpoint(nano(), weights)]
    attempts += [lambda to=to: convert_checkpoint(weights, tmp_path / 'out.pth', to) for to in FORMATS]
    for attempt in attempts:
        with pytest.raises(
            CheckpointError, match=f'{TABLE} has 168 rows, and the window 7x7 in the file has 169: the file is damaged'
        ):
            attempt()
        record_fault('damages')
