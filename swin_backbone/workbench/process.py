"""What the commands and `load` change in other packages of the process. `import swin_backbone` changes none of it."""

from functools import cache

from ..compat import give_numba_a_cache, leave_out_broken_torchvision
from ..openmmlab.compat import print_no_debug_messages
from ..openmmlab.config_files import read_yaml_without_code, register_prefixes
from ..openmmlab.panoptic import give_functions_to_mmdet


@cache
def prepare_process() -> None:
    """Prepare the process for configs, data and models of strangers. A second call changes nothing."""
    read_yaml_without_code()  # mmengine's reader runs Python code of a file
    register_prefixes()  # OneDL's mmengine does not find the toolboxes by `mmdet::` and `mmseg::`
    print_no_debug_messages()  # else mmengine prints a line for each missing optional package
    give_numba_a_cache()  # before mmdet: without a place for the cache, its import stops
    leave_out_broken_torchvision()  # before mmdet and mmpretrain, whose import stops beside a build for another torch
    give_functions_to_mmdet()  # else panoptic quality needs panopticapi, which is not on PyPI
