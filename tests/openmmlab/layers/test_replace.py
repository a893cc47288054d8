"""Layers of the toolboxes give way to this package's, wherever a config names them; somebody else's do not."""

from swin_backbone.openmmlab.layers.replace import replace_layers


def test_layers_of_the_toolboxes_alone():
    def heads(roi_extractor, uper_head):
        return dict(roi_head=[dict(bbox_roi_extractor=dict(type=roi_extractor))], decode_head=dict(type=uper_head))

    for found, expected in [
        (('SingleRoIExtractor', 'UPerHead'), ('swin_backbone.SingleRoIExtractor', 'swin_backbone.UPerHead')),
        (
            ('mmdet.SingleRoIExtractor', 'mmseg.UPerHead'),
            ('swin_backbone.SingleRoIExtractor', 'swin_backbone.UPerHead'),
        ),
        (('mine.SingleRoIExtractor', 'mine.UPerHead'), ('mine.SingleRoIExtractor', 'mine.UPerHead')),
        (('GenericRoIExtractor', dict), ('GenericRoIExtractor', dict)),
    ]:
        model = heads(*found)
        replace_layers(model)
        assert model == heads(*expected)
