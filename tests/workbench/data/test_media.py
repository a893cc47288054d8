"""Sizes of pictures in OpenCV's orientation."""

import struct

import cv2
import numpy as np
import pytest
from PIL import ExifTags, Image

from swin_backbone.workbench.data.media import describe_dropped_bits, read_picture, read_picture_size

ORIENTATION = ExifTags.Base.Orientation
PIXELS = Image.fromarray(np.zeros((20, 30, 3), np.uint8))
# EXIF tags (type, count, four bytes): the short of cameras, and types from various programs
STORED = {
    'short': (3, 1, b'\6\0\0\0'),
    'text': (2, 2, b'6\0\0\0'),
    'undefined': (7, 1, b'\6\0\0\0'),
    'float': (11, 1, struct.pack('<f', 6)),
}


def written(path, orientation):
    """Write a picture of 30x20 pixels with an orientation tag."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    PIXELS.save(path, **(dict(tiffinfo=exif) if path.suffix == '.tif' else dict(exif=exif)))
    return path


@pytest.mark.parametrize('suffix', ['.jpg', '.png', '.webp', '.tif'])
def test_the_size_of_a_turned_picture_is_that_of_its_pixels(suffix, tmp_path, record_fault):
    """OpenCV and Pillow turn different formats. Pillow's size is not always the size after the turn."""
    orientations = [*range(10), 65535]
    for orientation in orientations:
        path = written(tmp_path / f'{orientation}{suffix}', orientation)
        assert read_picture_size(path) == read_picture(path).shape[:2], orientation
    record_fault('bad_data', len(orientations))


@pytest.mark.parametrize('stored', STORED)
def test_the_size_of_a_picture_with_unusual_orientation(stored, tmp_path, record_fault):
    kind, count, value = STORED[stored]
    tag = struct.pack('<HHI', ORIENTATION, kind, count) + value
    exif = b'Exif\0\0II*\0\10\0\0\0\1\0' + tag + b'\0\0\0\0'
    PIXELS.save(tmp_path / 'a.jpg')
    begin, rest = (tmp_path / 'a.jpg').read_bytes()[:2], (tmp_path / 'a.jpg').read_bytes()[2:]
    (tmp_path / 'a.jpg').write_bytes(begin + b'\xff\xe1' + struct.pack('>H', len(exif) + 2) + exif + rest)
    assert read_picture_size(tmp_path / 'a.jpg') == read_picture(tmp_path / 'a.jpg').shape[:2]
    record_fault('bad_data')


def test_the_size_of_a_picture_that_is_turned_by_xmp_alone(tmp_path):
    """Pillow reads XMP. OpenCV ignores XMP."""
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    PIXELS.save(tmp_path / 'a.jpg', xmp=xmp)
    assert read_picture_size(tmp_path / 'a.jpg') == read_picture(tmp_path / 'a.jpg').shape[:2] == (20, 30)


@pytest.mark.parametrize('length', [1, 3, 24, 100, 200])
def test_a_header_that_stops_is_an_error_that_names_the_picture(length, tmp_path, record_fault):
    PIXELS.save(tmp_path / 'a.jpg')
    (tmp_path / 'a.jpg').write_bytes((tmp_path / 'a.jpg').read_bytes()[:length])
    with pytest.raises(OSError, match=r'a\.jpg cannot be read as a picture'):
        read_picture_size(tmp_path / 'a.jpg')
    record_fault('bad_data')


@pytest.mark.parametrize(('suffix', 'pixels', 'note'), [
    *((suffix, np.full(shape, 4000, np.uint16), 'its largest value 4000 becomes')
      for suffix in ('.png', '.tif', '.pnm', '.jp2') for shape in ((40, 50), (40, 50, 3))),
    *((suffix, np.full((40, 50, 3), 200, np.uint8), '') for suffix in ('.png', '.tif', '.jpg', '.ppm', '.jp2', '.bmp')),
    ('.tif', np.ones((4, 5, 3), np.float32), ''),
])  # fmt: skip
def test_what_is_used_of_16_bits_is_said(suffix, pixels, note, tmp_path, record_fault):
    path = tmp_path / f'a{suffix}'
    cv2.imwrite(str(path), pixels)
    assert note in describe_dropped_bits(path)
    assert bool(describe_dropped_bits(path)) == bool(note)
    if note:
        assert describe_dropped_bits(path).endswith(f'{read_picture(path).max()} of 255')
    record_fault('bad_data')


def test_a_pgm_of_12_bits_is_dark(tmp_path, record_fault):
    path = tmp_path / 'a.pgm'
    path.write_bytes(b'P5 # by a camera\n2 1\n4095\n' + np.array([4095, 99], '>u2').tobytes())
    note = 'has 16 bits a channel, of which the upper 8 are used: its largest value 4095 becomes 15 of 255'
    assert describe_dropped_bits(path) == f'{path} {note}'
    record_fault('bad_data')


@pytest.mark.parametrize('bigtiff', [False, True])
@pytest.mark.parametrize('read', [read_picture_size, read_picture])
def test_a_tiff_of_ten_bands_names_the_page(read, bigtiff, tmp_path):
    tifffile = pytest.importorskip('tifffile', reason='tifffile is not installed')
    tifffile.imwrite(
        tmp_path / 'a.tif',
        np.zeros((20, 30, 10), np.uint16),
        photometric='minisblack',
        planarconfig='contig',
        bigtiff=bigtiff,
    )
    with pytest.raises(OSError, match=r'a\.tif has 10 bands: .* see docs/guides/more_bands\.md'):
        read(tmp_path / 'a.tif')
