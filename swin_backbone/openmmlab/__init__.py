"""Configs and runners of the toolboxes: code with mmengine, and with mmdet or mmseg."""

try:
    import mmengine  # noqa: F401 - first: the registration after this import imports files of this folder
except ImportError as error:
    raise ImportError(
        'this part of swin_backbone needs mmengine and mmcv, which are not installed. In a checkout, where torch is '
        "installed: either `pip install -e '.[onedl]'` (the maintained OneDL forks) or "
        "`PIP_CONSTRAINT=constraints/openmmlab.txt pip install -e '.[openmmlab]'` (OpenMMLab's own releases); "
        'never both. `make install` makes an environment with all of it. Backbones and checkpoints need neither.'
    ) from error
