"""Event files as TensorBoard reads them.

    event_files.py PROGRAM    PROGRAM is event_files.cpp's; needs the packages tensorboard and numpy

Scalars, histograms, images and text are read by tensorboard's EventAccumulator; checksums, PNG files and the counts of
the histograms are computed here once more, from their definitions.
"""

import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def crc32c(data):
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = (rest >> 1) ^ (0x82F63B78 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def masked(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def check_records(path):
    data, at, records = path.read_bytes(), 0, 0
    while at < len(data):
        length, crc_of_length = struct.unpack_from("<QI", data, at)
        assert masked(crc32c(data[at : at + 8])) == crc_of_length, (path, at)
        payload = data[at + 12 : at + 12 + length]
        assert len(payload) == length, (path, at)
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert masked(crc32c(payload)) == crc, (path, at)
        at += length + 16
        records += 1
    assert records > 3
    return records


def load(path):
    everything = dict.fromkeys(("scalars", "histograms", "images", "tensors"), 0)
    return EventAccumulator(str(path), size_guidance=everything).Reload()


def check_scalars(events):
    loss = events.Scalars("loss/train")
    assert [event.step for event in loss] == list(range(100))
    assert [event.wall_time for event in loss] == [1.7e9 + step for step in range(100)]
    assert [event.value for event in loss] == [float(np.float32(1 / (step + 1))) for step in range(100)]
    first, second = events.Scalars("odd")
    assert math.isnan(first.value) and first.step == -5
    assert second.value == math.inf and second.step == 1 << 40
    assert events.Scalars("größe")[0].value == -2.5


def edges():
    positive, edge = [], 1e-12
    while edge < 1e20:
        positive.append(edge)
        edge *= 1.1
    return [-edge for edge in reversed(positive)] + [0.0] + positive


def close(a, b):
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def check_histogram(events, tag, values):
    """The counts of Python's SummaryWriter: those of numpy, without the empty ones at both ends."""
    (event,) = events.Histograms(tag)
    assert event.step == 3
    histogram = event.histogram_value
    counts, limits = np.histogram(values, bins=edges())
    filled = np.flatnonzero(counts)
    begin, end = filled[0], filled[-1] + 1
    assert list(histogram.bucket) == [0.0, *counts[begin:end]], tag
    assert list(histogram.bucket_limit) == list(limits[begin : end + 1]), tag
    assert (histogram.min, histogram.max, histogram.num) == (values.min(), values.max(), len(values)), tag
    assert close(histogram.sum, math.fsum(values)) or abs(histogram.sum - math.fsum(values)) < 1e-9, tag
    assert close(histogram.sum_squares, math.fsum(values * values)), tag


def pixels_of(png):
    """[height, width, channels] of a PNG file with 8 bits a channel, by its specification."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack_from(">IIBB", body)
            assert depth == 8
            channels = {0: 1, 2: 3}[color]
        packed += body if kind == b"IDAT" else b""
        at += length + 12
    rows, stride = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, -1), width * channels
    image = np.zeros((height + 1, stride + channels), np.int64)  # a row above and a pixel to the left of zeros
    for y, row in enumerate(rows, 1):
        for x, byte in enumerate(row[1:], channels):
            left, up, corner = image[y, x - channels], image[y - 1, x], image[y - 1, x - channels]
            paeth = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
            image[y, x] = (int(byte) + (0, left, up, (left + up) // 2, paeth)[row[0]]) % 256
    return image[1:, channels:].reshape(height, width, channels)


def check_images(events):
    expected = (np.arange(3 * 40 * 50) % 251).reshape(3, 40, 50).transpose(1, 2, 0)
    first, second = events.Images("bytes")
    assert (first.step, first.width, first.height) == (1, 50, 40)
    assert (pixels_of(first.encoded_image_string) == expected).all()
    assert (pixels_of(second.encoded_image_string) == 255 - expected).all()
    (grey,) = events.Images("grey")
    assert pixels_of(grey.encoded_image_string).reshape(-1).tolist() == [0, 0, 128, 255, 255, 0]


def check_csv(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "wall_time,step,tag,value"
    assert lines[2] == "1700000001.000000,1,loss/train,0.5"
    assert float(lines[3].split(",")[3]) == 1 / 3, "all digits"
    assert len(lines) == 1 + 103


def check_that_tensorboard_checks(path):
    """A flipped bit is found, so what was read above had the right checksums for tensorboard, too."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    try:
        complete = len(load(path).Scalars("loss")) == 10
    except Exception as error:
        print("a flipped bit:", error)
        complete = False
    assert not complete


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.argv[1], name], check=True, timeout=50)
        (file,) = (folder / "kinds").glob("events.out.tfevents.*")
        print(check_records(file), "records")
        events = load(folder / "kinds")
        check_scalars(events)
        for tag in ("normal", "wide"):
            check_histogram(events, tag, np.fromfile(folder / tag))
        check_histogram(events, "with gaps", np.array([0.0] * 7 + [-4.0] * 2))
        check_images(events)
        assert events.Tensors("words")[0].tensor_proto.string_val[0] == b"**bold**"
        check_csv(folder / "kinds" / "scalars.csv")

        loss = load(folder / "resumed").Scalars("loss")
        assert [event.step for event in loss] == list(range(8))
        assert [event.value for event in loss] == [0, 1, 2, 3, 4, 105, 106, 107]
        check_that_tensorboard_checks(sorted((folder / "resumed").iterdir())[0])


main()
