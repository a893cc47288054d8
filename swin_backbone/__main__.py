"""`python -m swin_backbone COMMAND`, or `swin-backbone COMMAND` of an installed package.

`info` works without mmengine, mmcv and torch. All other commands are the files of tools/, also in a wheel.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from .commands import run
from .commands.info import print_info

# By command: the file in tools/, and the help
TOOLS = {
    'train': ('train', 'train a detector, segmentor or classifier'),
    'test': ('test', 'evaluate a checkpoint or an exported model'),
    'report': ('report', 'write a page on what a model gets wrong'),
    'infer': ('infer', 'predict for pictures, folders and videos'),
    'infer-tiles': ('infer_tiles', 'predict for a picture of any size, in tiles'),
    'export': ('export', 'make a folder that runs without torch'),
    'convert': ('convert_checkpoint', 'write a checkpoint in another format'),
    'visualize': ('visualize', 'draw windows, masks, attention, features'),
    'check-data': ('check_data', 'check the data sets of a config'),
    'browse-dataset': ('browse_dataset', 'show augmented pictures of a data set'),
    'print-config': ('print_config', 'print a config as a training would use it'),
    'plot-log': ('plot_log', 'draw the curves of trainings'),
    'make-shapes': ('make_shapes_dataset', 'generate a small data set for trials'),
    'flops': ('flops', 'count parameters and multiply-adds'),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_get_name(), description='Swin Transformer backbones.')
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    commands.add_parser('info', help='print versions, devices and backends, for a bug report')
    for name, (_, summary) in TOOLS.items():
        commands.add_parser(name, help=summary)
    return parser


def main() -> None:
    """Run a command. A tool gets all arguments behind its name, also `--help`."""
    if sys.argv[1:2] and sys.argv[1] in TOOLS:
        _run_tool(sys.argv[1], sys.argv[2:])
    else:
        make_parser().parse_args()
        run(print_info)


def _get_name() -> str:
    return 'swin-backbone' if Path(sys.argv[0]).stem.startswith('swin-backbone') else 'python -m swin_backbone'


def _run_tool(name: str, arguments: Sequence[str]) -> None:
    folder = _find_tools()
    sys.argv = [f'{_get_name()} {name}', *arguments]
    sys.path.insert(0, str(folder))  # as Python does for a file
    spec = spec_from_file_location(TOOLS[name][0], folder / f'{TOOLS[name][0]}.py')
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    run(tool.main)


def _find_tools() -> Path:
    """Return the folder of the tools: in an installed wheel, or in the checkout."""
    package = Path(__file__).parent
    for folder in (package / '.mim' / 'tools', package.parent / 'tools'):
        if (folder / 'train.py').is_file():
            return folder
    sys.exit(f'{_get_name()}: this installation has no tools: neither {package}/.mim/tools nor {package.parent}/tools')


if __name__ == '__main__':
    main()
