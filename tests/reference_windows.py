"""A backbone that attends by the literal reference."""

from swin_backbone.backends import reference
from swin_backbone.backends.graph import RolledWindows
from swin_backbone.backends.plan import Plan, Planner


class ReferenceWindows(RolledWindows):
    """Windows in which the paper's algorithm attends, as `backends/reference.py` writes it."""

    def __init__(self, batch, height, width, window_size, shift, mask_padding, device):
        super().__init__(batch, height, width, window_size, shift, mask_padding, device)
        self.mask_padding = mask_padding

    def attend(self, qkv_BHW3C, bias_hNN, scale, dropout, qkv_bias_3C=None):
        assert not dropout
        geometry = self.size, self.window_size, self.shift, self.mask_padding
        return reference.attend_in_shifted_windows(qkv_BHW3C, bias_hNN, scale, *geometry)


class ReferencePlanner(Planner):
    """Plans maps as a whole, with the reference's attention."""

    def plan(self, x, training):
        return Plan(ReferenceWindows, None, self.with_cp)


def attend_by_reference(backbone):
    """A backbone that attends by the reference from now on."""
    for stage in backbone.stages:
        stage.planner = ReferencePlanner(*stage.planner)
    return backbone
