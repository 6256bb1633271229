"""PNG files of id maps, chunk by chunk, made with numpy and zlib alone."""

import struct
import zlib

import numpy as np

STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def rgb_png(width, height, stream, depth=8):
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", stream) + chunk(b"IEND", b"")


def random_ids(rng, height, width, run=5, colours=6):
    """Blocks with ragged borders; `run` 1 is noise."""
    palette = rng.integers(0, 1 << 24, colours)
    palette[0] = 0
    blocks = palette[rng.integers(0, colours, (height // run + 1, width // run + 1))]
    ids = blocks.repeat(run, 0).repeat(run, 1)[:height, :width]
    shift = rng.integers(0, 2, height)
    return np.stack([np.roll(row, s) for row, s in zip(ids, shift)]).astype(np.uint32)


def filtered_rows(pixels, filters):
    """Rows as PNG stores them; `pixels` is `H x W x C` uint8, `filters` a number from 0 to 4 for each row."""
    padded = np.pad(pixels.astype(np.int64), ((1, 0), (1, 0), (0, 0)))
    here, left, above, corner = padded[1:, 1:], padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    guess = left + above - corner
    far = np.stack([abs(guess - v) for v in (left, above, corner)])
    nearest = np.choose(far.argmin(0), [left, above, corner])
    guesses = np.stack([np.zeros_like(here), left, above, (left + above) // 2, nearest])
    filters = np.asarray(filters)
    rows = (here - guesses[filters, np.arange(len(filters))]) & 255
    return b"".join(bytes([f]) + row.astype(np.uint8).tobytes() for f, row in zip(filters, rows))


def stream_of(ids, filters, level=6, strategy=zlib.Z_DEFAULT_STRATEGY, wbits=15, flush_every=None):
    """The zlib stream of an id map; with `flush_every`, a new block begins after so many bytes."""
    pixels = np.stack([ids & 255, ids >> 8 & 255, ids >> 16 & 255], -1).astype(np.uint8)
    data = filtered_rows(pixels, filters)
    packer = zlib.compressobj(level, zlib.DEFLATED, wbits, 8, strategy)
    step = flush_every or max(len(data), 1)
    out = []
    for i in range(0, len(data), step):
        out.append(packer.compress(data[i : i + step]))
        if flush_every:
            out.append(packer.flush(zlib.Z_FULL_FLUSH if i % 2 else zlib.Z_SYNC_FLUSH))
    return b"".join(out) + packer.flush()
