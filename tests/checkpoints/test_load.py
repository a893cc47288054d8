"""Pre-trained weights: the official names and order, the toolboxes' wrappings, other windows."""

import pytest
import torch

from swin_backbone import SwinBackbone


def nano(**arguments):
    return SwinBackbone(arch='nano', **arguments)


def randomised(**arguments):
    backbone = nano(**arguments).eval()
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return backbone


def to_official(state_dict):
    """The names and order of microsoft/Swin-Transformer, built from the paper's code's way to merge patches."""
    official = {'head.weight': torch.zeros(1000, 256), 'norm.weight': torch.ones(256), 'norm.bias': torch.zeros(256)}
    for key, value in state_dict.items():
        if key.startswith('norm'):
            continue
        if '.downsample.' in key:
            channels = value.shape[-1] // 4
            numbers_CHW = torch.arange(4 * channels).view(channels, 2, 2)  # where unfold puts neighbour (dy, dx)
            # x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2], one after another
            order = torch.cat([numbers_CHW[:, dy, dx] for dy, dx in ((0, 0), (1, 0), (0, 1), (1, 1))])
            value = value[..., order]
        key = key.replace('stages.', 'layers.').replace('patch_embed.projection', 'patch_embed.proj')
        key = (
            key.replace('attn.w_msa.', 'attn.').replace('ffn.layers.0.0', 'mlp.fc1').replace('ffn.layers.1', 'mlp.fc2')
        )
        official[key] = value
    official['layers.0.blocks.1.attn_mask'] = torch.zeros(4, 49, 49)
    official['layers.0.blocks.0.attn.relative_position_index'] = torch.zeros(49, 49)
    return official


def wrap(kind, state_dict):
    if kind == 'official':
        return {'model': to_official(state_dict)}
    if kind == 'detector':
        return {
            'state_dict': {f'backbone.{k}': v for k, v in state_dict.items()} | {'neck.w': torch.zeros(1)},
            'meta': {},
        }
    if kind == 'parallel':
        return {'state_dict': {f'module.backbone.{k}': v for k, v in state_dict.items()}}
    return state_dict


@pytest.mark.parametrize('kind', ['official', 'detector', 'parallel', 'plain'])
def test_pretrained_weights_give_the_same_outputs(tmp_path, kind):
    source = randomised()
    for stage in range(4):  # not part of an official checkpoint
        torch.nn.init.ones_(getattr(source, f'norm{stage}').weight)
        torch.nn.init.zeros_(getattr(source, f'norm{stage}').bias)
    torch.save(wrap(kind, source.state_dict()), tmp_path / 'weights.pth')
    for arguments in (
        dict(init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'weights.pth')), convert_weights=True),
        dict(pretrained=str(tmp_path / 'weights.pth')),
    ):
        backbone = nano(**arguments).eval()
        backbone.init_weights()
        x = torch.randn(1, 3, 50, 61)
        for output, expected in zip(backbone(x), source(x)):
            assert torch.equal(output, expected)


def test_tables_are_resized_to_another_window_and_image(tmp_path):
    source = randomised(use_abs_pos_embed=True, pretrain_img_size=32)
    torch.save(source.state_dict(), tmp_path / 'weights.pth')
    backbone = nano(
        window_size=(7, 12), use_abs_pos_embed=True, pretrain_img_size=64, pretrained=str(tmp_path / 'weights.pth')
    )
    backbone.init_weights()
    name = 'stages.1.blocks.0.attn.w_msa.relative_position_bias_table'
    small, large = (model.state_dict()[name] for model in (source, backbone))
    expected = torch.nn.functional.interpolate(small.t().view(1, 4, 13, 13), size=(13, 23), mode='bicubic')
    torch.testing.assert_close(large.t().view(4, 13, 23), expected[0])
    assert backbone.absolute_pos_embed.shape == (1, 256, 32)
    assert not torch.equal(backbone.absolute_pos_embed[0, :64], source.absolute_pos_embed[0])


def test_another_width_is_an_error_that_names_both(tmp_path):
    torch.save(randomised(embed_dims=64).state_dict(), tmp_path / 'weights.pth')
    with pytest.raises(ValueError, match=r'patch_embed.projection.weight of shape \(64, 3, 4, 4\).*\(32, 3, 4, 4\)'):
        nano(pretrained=str(tmp_path / 'weights.pth')).init_weights()


def test_a_checkpoint_with_nothing_in_it_for_us_is_an_error(tmp_path):
    torch.save({'state_dict': {'conv1.weight': torch.zeros(1)}}, tmp_path / 'weights.pth')
    with pytest.raises(ValueError, match='no weight of this backbone'):
        nano(pretrained=str(tmp_path / 'weights.pth')).init_weights()


def test_what_stays_random_is_named_in_the_log(tmp_path):
    state = randomised().state_dict()
    del state['norm2.bias']
    torch.save(state, tmp_path / 'weights.pth')
    backbone = nano(pretrained=str(tmp_path / 'weights.pth'))
    from mmengine.logging import MMLogger

    logger = MMLogger.get_instance('test_what_stays_random')
    records = []
    logger.addFilter(lambda record: records.append(record.getMessage()) or True)
    backbone.init_weights()
    assert any('Left at their initialisation: norm2.bias' in message for message in records)


def test_index_tables_in_a_checkpoint_are_ignored_by_strict_loading():
    backbone = nano()
    state = dict(backbone.state_dict())
    state['stages.0.blocks.0.attn.w_msa.relative_position_index'] = torch.zeros(49, 49)
    backbone.load_state_dict(state, strict=True)
    wrapped = torch.nn.ModuleDict({'backbone': backbone})
    wrapped.load_state_dict({f'backbone.{key}': value for key, value in state.items()}, strict=True)
