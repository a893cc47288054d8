"""The functions of `mmcv._ext`, by name, for an mmcv without compiled operators.

A missing operator is a function with an error, because `mmcv.ops` reads all names at import.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, NoReturn

from . import deform, losses, maps, nms, roi, roi_rotated

OPERATORS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(roi.roi_align_forward, roi.roi_align_backward),
        *(roi_rotated.roi_align_rotated_forward, roi_rotated.roi_align_rotated_backward),
        *(roi_rotated.rotated_feature_align_forward, roi_rotated.rotated_feature_align_backward),
        *(nms.nms, nms.softnms, nms.nms_match, nms.nms_rotated, nms.nms_quadri),
        *(nms.box_iou_rotated, nms.box_iou_quadri),
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
def _say_once() -> None:
    from mmengine.logging import print_log

    print_log(
        "mmcv has no compiled operators here: swin_backbone's own stand in for them (docs/measurements/mmcv_ops.md). "
        "mmcv's: MMCV=compiled make install",
        logger='current',
    )


def _announced(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def operator(*args: Any, **kwargs: Any) -> Any:
        _say_once()
        return function(*args, **kwargs)

    return operator


def _missing(name: str) -> Callable[..., NoReturn]:
    def operator(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f'{name}: of this operator of mmcv there is only the compiled one, which is not installed; '
            '`MMCV=compiled make install` builds it'
        )

    operator.__name__ = name
    return operator


def get_compiler_version() -> str:
    """Return the compiler's name for mmcv's report of the environment."""
    return 'none: swin_backbone.mmcv_ops'


def get_compiling_cuda_version() -> str:
    return 'none: swin_backbone.mmcv_ops'


globals().update({name: _announced(function) for name, function in OPERATORS.items()})


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith('_'):
        raise AttributeError(name)
    return _missing(name)
