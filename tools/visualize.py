"""Draw the windows, masks, attention and features of a Swin, and explanations of its predictions.

python tools/visualize.py windows --shape H W
python tools/visualize.py masks --shape H W
python tools/visualize.py attention IMAGE CONFIG [CKPT] --point X,Y
python tools/visualize.py features IMAGE CONFIG CKPT
python tools/visualize.py cam IMAGE CONFIG CKPT
python tools/visualize.py bias CKPT

COMMAND --help prints the options of a command. Stages, blocks and heads count from 1: block 2 of stage 1 is
`stages.0.blocks.1`. The output is a PNG or an HTML page. No display is needed.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, USER_ERRORS, Parser, exit_with_message, make_job, run
from swin_backbone.options import ShapeAction, positive, whole_from
from swin_backbone.outputs import check_outputs

if TYPE_CHECKING:  # figures are imported in their functions, for a quick --help
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from swin_backbone.workbench.predict.predictor import Predictor

    Commands = argparse._SubParsersAction[Parser]
    Draw = Callable[[argparse.Namespace], Figure]

WINDOW: dict[str, Any] = dict(type=positive, nargs='+', action=ShapeAction, metavar='W')


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    commands = parser.add_subparsers(dest='command', required=True)

    for name, what in (
        ('windows', 'the windows of a map: shift, padding, regions'),
        ('masks', 'the attention mask of each kind of window, and all masks'),
    ):
        shape = dict(required=True, help='height and width of the image in pixels')
        command = _add_command(commands, name, draw_layout, what, 'shape', shape=shape)
        command.add_argument(
            '--window', **WINDOW, default=(7, 7), help='side of a window, or height and width (default: 7)'
        )
        command.add_argument('--stage', type=whole_from(1, 4), default=1, help='stage, from 1 to 4 (default: 1)')
        command.add_argument('--shift', action='store_true', help='show a block with shifted windows')
        command.add_argument('--mask-padding', action='store_true', help='keep tokens from attending to padding')

    what = 'the attention of a token, and its receptive field after each block'
    checkpoint = dict(nargs='?', help='default: the weights that the config starts from')
    attention = _add_for_model(commands, 'attention', draw_attention, what, checkpoint=checkpoint)
    attention.add_argument(
        '--point', type=_parse_pixel, required=True, metavar='X,Y', help='column and row of a pixel of the image'
    )
    for name in ('stage', 'block', 'head'):
        attention.add_argument(f'--{name}', type=positive, default=1, help=f'{name}, from 1 (default: 1)')

    _add_for_model(commands, 'features', draw_features, 'the map of each stage, with principal components as colours')

    cam = _add_for_model(commands, 'cam', draw_cam, "Grad-CAM or EigenCAM of a detector's box or a segmentor's class")
    cam.add_argument('--method', choices=['grad', 'eigen'], default='grad', help='Grad-CAM (default) or EigenCAM')
    cam.add_argument('--label', metavar='CLASS', help="class (default: the best box's, or the most frequent)")
    cam.add_argument('--number', type=positive, default=1, metavar='N', help='explain the N-th best box (default: 1)')
    cam.add_argument('--stage', type=positive, default=4, help='stage of the map, from 1 to 4 (default: 4)')

    what = 'relative position bias tables, before and after resizing'
    bias = _add_command(commands, 'bias', draw_bias, what, 'checkpoint unsafe_load timeout')
    bias.add_argument('--stage', type=positive, default=1, help='stage, from 1 (default: 1)')
    bias.add_argument('--block', type=positive, default=1, help='block, from 1 (default: 1)')
    bias.add_argument('--window', **WINDOW, help='window of a checkpoint without this number')
    bias.add_argument('--new-window', **WINDOW, help='window to resize to (default: twice as large)')
    return parser.parse_args()


def _add_command(
    commands: 'Commands', name: str, draw: 'Draw', what: str, arguments: str, **changes: dict[str, Any]
) -> Parser:
    command: Parser = commands.add_parser(name, help=what, description=what)
    command.set_defaults(draw=draw)
    changes['out'] = dict(default=Path(f'{name}.png'), help=f'file to write (default: {name}.png)')
    command.add(f'{arguments} out overwrite debug dpi', **changes)
    return command


def _add_for_model(commands: 'Commands', name: str, draw: 'Draw', what: str, **changes: dict[str, Any]) -> Parser:
    return _add_command(
        commands, name, draw, what, f'image {JOB_OPTIONS} checkpoint device unsafe_load timeout',
        device=dict(default='cpu', help='device of the model (default: cpu)'), **changes,
    )  # fmt: skip


def _parse_pixel(text: str) -> tuple[int, int]:
    try:
        column, row = map(int, text.split(','))
    except ValueError:
        raise argparse.ArgumentTypeError(f'it takes a pixel X,Y, got {text!r}') from None
    return column, row


def draw_layout(args: argparse.Namespace) -> 'Figure':
    from swin_backbone.workbench.pictures.layout import lay_out, map_size
    from swin_backbone.workbench.pictures.windows import masks_figure, windows_figure

    layout = lay_out(map_size(args.shape, args.stage), args.window, args.shift, args.mask_padding)
    return windows_figure(layout) if args.command == 'windows' else masks_figure(layout)


def _open_input(args: argparse.Namespace) -> 'tuple[Predictor, dict[str, Any], NDArray[Any]]':
    """Return the predictor, its input for the image, and the image in the size of this input, (H, W, 3) uint8 RGB."""
    from swin_backbone.workbench.data import media
    from swin_backbone.workbench.job import open_predictor
    from swin_backbone.workbench.predict.explain import resize_picture

    medium = media.find_media([args.image])[0]
    predictor = open_predictor(make_job(args), args.checkpoint)
    predictor.require_backbone()
    frame = next(media.read_frames(medium, read_pixels=predictor.read_pixels))
    model_input = predictor.preprocess(frame)
    return predictor, model_input, resize_picture(frame, model_input)


def draw_attention(args: argparse.Namespace) -> 'Figure':
    from swin_backbone.workbench.pictures.attention import attention_maps, list_strides
    from swin_backbone.workbench.pictures.heatmaps import attention_figure

    predictor, model_input, picture_HW3 = _open_input(args)
    x, y = args.point
    height, width = model_input['data_samples'].ori_shape[:2]
    if not (0 <= x < width and 0 <= y < height):
        raise ValueError(f'--point takes a pixel X,Y of a picture {width} wide and {height} high, got {x},{y}')
    pixel = y * picture_HW3.shape[0] // height, x * picture_HW3.shape[1] // width
    images = predictor.normalise(model_input)
    shifted, plain = (attention_maps(predictor.model, images, shift=shift) for shift in (True, False))
    strides = list_strides(predictor.model)
    return attention_figure(picture_HW3, shifted, plain, pixel, strides, args.stage, args.block, args.head)


def draw_features(args: argparse.Namespace) -> 'Figure':
    import torch

    from swin_backbone.workbench.pictures.attention import find_backbone, list_strides
    from swin_backbone.workbench.pictures.heatmaps import features_figure

    predictor, model_input, picture_HW3 = _open_input(args)
    indices = find_backbone(predictor.model).out_indices
    maps = [torch.from_numpy(map_CHW) for map_CHW in predictor.compute_features(model_input)]
    named = [(f'stage {index + 1}', map_CHW) for index, map_CHW in zip(indices, maps)]
    strides = list_strides(predictor.model)
    return features_figure(picture_HW3, named, [strides[index] for index in indices])


def draw_cam(args: argparse.Namespace) -> 'Figure':
    from swin_backbone.workbench.pictures.attention import list_strides
    from swin_backbone.workbench.pictures.heatmaps import cam_figure
    from swin_backbone.workbench.predict.explain import explain

    predictor, model_input, picture_HW3 = _open_input(args)
    explanation = explain(predictor, model_input, args.stage, args.method, args.label, args.number)
    name = 'Grad-CAM' if args.method == 'grad' else 'EigenCAM'
    what = f'the class {explanation.class_name!r}'
    if explanation.box:
        what = f'the box {explanation.class_name!r}, score {explanation.score:.2f}'
    if args.method == 'eigen':
        what = f'the features, which are the same for every prediction; shown beside {what}'
    title = f'{name} at stage {args.stage}, of {what}'
    stride = list_strides(predictor.model)[args.stage - 1]
    return cam_figure(picture_HW3, explanation.map_HW, stride, title, explanation.box)


def draw_bias(args: argparse.Namespace) -> 'Figure':
    from swin_backbone.checkpoints import read_checkpoint
    from swin_backbone.workbench.pictures.bias import find_bias_tables
    from swin_backbone.workbench.pictures.windows import bias_figure

    loaded = read_checkpoint(args.checkpoint, unsafe_load=args.unsafe_load)
    tables = find_bias_tables(loaded, args.stage, args.block, args.new_window, args.window)
    rows = [
        (f'{what} {window[0]}x{window[1]}', table_Rh, window)
        for what, (table_Rh, window) in zip(('trained: window', 'window'), tables)
    ]
    title = f'Relative position bias of {Path(args.checkpoint).name}, stage {args.stage}, block {args.block}'
    return bias_figure(rows, title)


def main() -> None:
    args = parse_args()
    from swin_backbone.workbench.pictures.save import save_figure

    errors = ANY_ERROR if 'config' in args else USER_ERRORS
    with exit_with_message(errors, args.debug):
        inputs = [vars(args)[name] for name in ('image', 'config', 'checkpoint') if vars(args).get(name)]
        check_outputs(args.out, inputs=inputs, overwrite=args.overwrite)
        save_figure(args.draw(args), args.out, args.dpi)
    print(args.out)


if __name__ == '__main__':
    run(main)
