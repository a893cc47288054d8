"""The functions of `mmcv._ext`, by name, for an mmcv without compiled operators.

A missing operator is a function with an error, because `mmcv.ops` reads all names at import.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from ...compat import hidden_from_compiler
from . import deform, losses, maps, overlaps, roi, roi_rotated
from . import nms as suppression

OPERATORS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(roi.roi_align_forward, roi.roi_align_backward),
        *(roi_rotated.roi_align_rotated_forward, roi_rotated.roi_align_rotated_backward),
        *(roi_rotated.rotated_feature_align_forward, roi_rotated.rotated_feature_align_backward),
        *(suppression.nms, suppression.softnms, suppression.nms_match),
        *(suppression.nms_rotated, suppression.nms_quadri),
        *(overlaps.box_iou_rotated, overlaps.box_iou_quadri),
        *(deform.deform_conv_forward, deform.deform_conv_backward_input, deform.deform_conv_backward_parameters),
        *(deform.modulated_deform_conv_forward, deform.modulated_deform_conv_backward),
        *(deform.ms_deform_attn_forward, deform.ms_deform_attn_backward),
        *(losses.sigmoid_focal_loss_forward, losses.sigmoid_focal_loss_backward),
        *(maps.carafe_forward, maps.carafe_backward),
        *(maps.masked_im2col_forward, maps.masked_col2im_forward),
        *(maps.psamask_forward, maps.psamask_backward),
        *(maps.active_rotated_filter_forward, maps.active_rotated_filter_backward),
    )
}


@lru_cache(maxsize=1)
def _log_once() -> None:
    from mmengine.logging import print_log

    print_log(
        "mmcv has no compiled operators here: swin_backbone's own stand in for them (docs/measurements/mmcv_ops.md). "
        "mmcv's: MMCV=compiled make install",
        logger='current',
    )


@hidden_from_compiler  # like mmcv's compiled functions
def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an operator. The first call prints a line. A missing operator is a NotImplementedError."""
    if name in ('get_compiler_version', 'get_compiling_cuda_version'):  # called by mmcv's report of the environment
        return 'none: swin_backbone.openmmlab.mmcv_ops'
    if name not in OPERATORS:
        raise NotImplementedError(
            f'{name}: this operator of mmcv exists only compiled, and it is not installed; '
            '`MMCV=compiled make install` builds it'
        )
    _log_once()
    return OPERATORS[name](*args, **kwargs)


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith('_'):
        raise AttributeError(name)
    return partial(call, name)
