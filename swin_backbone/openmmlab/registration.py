"""What an import of this package adds to mmengine: backbones in the root registry, and this package's log lines."""

import logging

from mmengine.logging import print_log
from mmengine.registry import MODELS

from ..after_import import call_after_import
from ..models import (
    GlobalAttention,
    SimMIMSwinBackbone,
    SimMIMSwinV2Backbone,
    SwinBackbone,
    SwinMLPBackbone,
    SwinV2Backbone,
)

for _model in (
    *(SwinBackbone, SwinV2Backbone, SwinMLPBackbone, SimMIMSwinBackbone, SimMIMSwinV2Backbone),
    GlobalAttention,
):
    MODELS.register_module(module=_model)


def _register_lora() -> None:
    from ..adapters.peft import LoraSwinBackbone

    MODELS.register_module(module=LoraSwinBackbone)


call_after_import('swin_backbone.adapters.peft', _register_lora)  # not imported here: peft takes seconds


class _CurrentLogger(logging.Handler):
    """Pass lines to mmengine's current logger, the log of the training or test."""

    def emit(self, record: logging.LogRecord) -> None:
        print_log(record.getMessage(), 'current', record.levelno)


_logger = logging.getLogger(__name__.partition('.')[0])
_logger.addHandler(_CurrentLogger())
if _logger.level == logging.NOTSET:
    _logger.setLevel(logging.INFO)
