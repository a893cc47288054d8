"""Run a trained model on millions of pictures with Ray Data: a model per actor, streaming, results as parquet.

python examples/ray_data.py INPUT CONFIG CKPT OUT [--actors N] [--batch N] [--gpus-per-actor N] [--score-thr 0.3]

INPUT is a folder of pictures, a parquet file or folder with the column `path`, or a WebDataset (.tar, or a pattern in
quotes). OUT is a new folder of parquet files, with a row for each picture:

    path     path of the picture; the key in a WebDataset
    height, width
    result   JSON: COCO results of a detector, in pixels of the picture and without image_id; class, score and the
             five best classes of a classifier
    labels   PNG of a segmentor, with the class of each pixel
    error    the reason of a missing result, or null

A damaged picture has a row with an error. Ray restarts a lost actor, and gives the pictures to a second actor. Results
are written to OUT.partial, and renamed to OUT at the end. A new run replaces OUT.partial.

The command runs on a cluster by `ray job submit`: docs/guides/large_pictures.md.
"""

import argparse
import glob
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset

PICTURES = ('jpg', 'jpeg', 'jpe', 'jfif', 'png', 'bmp', 'tif', 'tiff', 'webp', 'jp2', 'avif')
SCHEMA = pa.schema(
    [('path', pa.string()), ('height', pa.int32()), ('width', pa.int32())]
    + [('result', pa.string()), ('labels', pa.binary()), ('error', pa.string())]
)


def main() -> None:
    args = parse_args()
    if args.out.exists():
        raise SystemExit(f'{args.out} is there already')
    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level='ERROR')
    context = DataContext.get_current()
    context.enable_progress_bars = False
    pictures = open_pictures(args.input)
    partial = args.out.with_name(args.out.name + '.partial')
    shutil.rmtree(partial, ignore_errors=True)
    predicted = pictures.map_batches(
        Model,
        fn_constructor_args=(args.config, args.checkpoint, args.score_thr, args.gpus_per_actor),
        compute=ActorPoolStrategy(size=args.actors, max_tasks_in_flight_per_actor=2),
        batch_size=args.batch,
        batch_format='numpy',
        num_cpus=1,
        num_gpus=args.gpus_per_actor,
    )  # by default, Ray Data restarts lost actors
    predicted.write_parquet(str(partial))
    partial.rename(args.out)
    print(f'see {args.out}')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('input')
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('out', type=Path)
    parser.add_argument('--actors', type=int, default=1, help='models at a time (default: 1)')
    parser.add_argument('--batch', type=int, default=8, help='pictures that an actor gets at a time (default: 8)')
    parser.add_argument('--gpus-per-actor', type=float, default=0, help='default: 0, on the CPU')
    parser.add_argument('--score-thr', type=float, default=0.3, help='leave out boxes with lower scores (default: 0.3)')
    args = parser.parse_args()
    for name in ('actors', 'batch'):
        if getattr(args, name) < 1:
            parser.error(f'--{name.replace("_", "-")} takes 1 or more, got {getattr(args, name)}')
    return args


def open_pictures(source: str) -> Dataset:
    """Return the columns `path` and `bytes`, read on demand. A picture without bytes has the reason in `error`.

    Raises:
        SystemExit: if there are no pictures.
    """
    if source.endswith('.tar'):
        tars = sorted(glob.glob(source))
        if not tars:
            raise SystemExit(f'{source} is no WebDataset')
        return ray.data.read_webdataset(tars, decoder=None).map(member)
    root = Path(source)
    parquets = sorted(map(str, root.glob('*.parquet'))) if root.is_dir() else [source]
    if parquets and parquets[0].endswith('.parquet'):
        paths = ray.data.read_parquet(parquets, columns=['path'])
    else:
        found = sorted(path for path in root.rglob('*') if path.suffix.lower().lstrip('.') in PICTURES)
        if not found:
            raise SystemExit(f'{source} has no pictures')
        paths = ray.data.from_items([dict(path=str(path)) for path in found])
    return paths.map(read_file)


def read_file(row: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(path=row['path'], bytes=Path(row['path']).read_bytes(), error='')
    except (OSError, ValueError) as error:
        return dict(path=row['path'], bytes=b'', error=str(error))


def member(row: dict[str, Any]) -> dict[str, Any]:
    """Return the picture of a sample of a WebDataset."""
    for suffix in PICTURES:
        if isinstance(row.get(suffix), bytes):
            return dict(path=row['__key__'], bytes=row[suffix], error='')
    return dict(path=row['__key__'], bytes=b'', error=f'the sample has none of {", ".join(PICTURES)}')


class Model:
    """An actor: predict for batches of rows with `path` and `bytes`."""

    def __init__(self, config: str, checkpoint: str, score_thr: float, gpus: float):
        from swin_backbone.options import Options
        from swin_backbone.workbench.job import Job, open_predictor

        job = Job(config, Options(device='cuda:0' if gpus else 'cpu'))
        self.predictor, self.score_thr = open_predictor(job, checkpoint), score_thr

    def __call__(self, batch: dict[str, Any]) -> Iterator[pa.Table]:
        """Yield row by row, so that large pictures need bounded memory."""
        for path, data, error in zip(batch['path'], batch['bytes'], batch['error']):
            row = dict(dict.fromkeys(SCHEMA.names), path=path)
            try:
                row.update(self.row_of(path, data, error))
            except Exception as reason:  # a row with an error, in place of the end of the whole run
                row['error'] = ' '.join(str(reason).split()) or type(reason).__name__
            yield pa.Table.from_pylist([row], SCHEMA)

    def row_of(self, path: str, data: bytes, error: str) -> dict[str, Any]:
        from swin_backbone.workbench.data.media import make_frame
        from swin_backbone.workbench.predict.prediction import Prediction
        from swin_backbone.workbench.predict.results import make_entries

        if error:
            raise OSError(error)
        pixels = self.predictor.loading_step.decode(data, path)
        frame = make_frame(pixels, Path(path))
        (sample,) = self.predictor.predict([self.predictor.preprocess(frame)])
        prediction = Prediction(path, sample, frame, self.predictor, self.score_thr)
        objects, labels_png = make_entries(prediction, 0, path), prediction.labels_png()
        for item in objects:
            item.pop('image_id', None)
        result = None if labels_png else json.dumps(objects)
        return dict(height=frame.original_size[0], width=frame.original_size[1], result=result, labels=labels_png)


if __name__ == '__main__':
    main()
