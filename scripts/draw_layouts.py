#!/usr/bin/env python3
"""Draws the pictures of docs/formats.md: docs/format_messages.svg and docs/format_tensors.svg."""
import pathlib

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
CODES, SCALES, TOKEN, IDS, PAD = "#9ecae1", "#fdae6b", "#a1d99b", "#dadaeb", "#f2f2f2"
EXPERTS = ["#9ecae1", "#a1d99b", "#fdae6b", "#dadaeb"]


class Picture:
    def __init__(self, width, height):
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="14" fill="#222222">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>']

    def text(self, x, y, words, anchor="start", size=14, bold=False, color="#222222"):
        weight = ' font-weight="bold"' if bold else ""
        self.lines.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{color}"{weight}>'
                          f'{words}</text>')

    def note(self, x, y, words, anchor="start"):
        self.text(x, y, words, anchor, size=13, color="#555555")

    def box(self, x, y, width, height, fill, words="", size=13, stroke="#666666"):
        self.lines.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
                          f'stroke="{stroke}" stroke-width="1"/>')
        if words:
            self.text(x + width / 2, y + height / 2 + size * 0.36, words, "middle", size)

    def arrow(self, x1, y1, x2, y2):
        self.lines.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#c0392b" stroke-width="1.5"/>')
        dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        tip = [(x2, y2), (x2 - 8 * dx + 4 * dy, y2 - 8 * dy + 4 * dx), (x2 - 8 * dx - 4 * dy, y2 - 8 * dy - 4 * dx)]
        points = " ".join(f"{x:g},{y:g}" for x, y in tip)
        self.lines.append(f'<polygon points="{points}" fill="#c0392b"/>')

    def write(self, name):
        (DOCS / name).write_text("\n".join(self.lines + ["</svg>", ""]))


def align(value, multiple):
    return (value + multiple - 1) // multiple * multiple


def draw_messages():
    picture = Picture(980, 545)
    picture.text(24, 30, "A message", size=19, bold=True)
    picture.note(24, 52, "Each part starts at a multiple of 16 bytes; what fills the gaps is not written.")
    parts = [("codes", "hidden * bits / 8", 330, CODES), ("", "", 22, PAD), ("scales", "one per group", 170, SCALES),
             ("", "", 22, PAD), ("source token", "int32", 130, TOKEN), ("", "12 B", 44, PAD),
             ("expert ids", "uint16 [top_k]", 160, IDS), ("", "", 22, PAD)]
    x = 24
    for name, what, width, color in parts:
        picture.box(x, 84, width, 42, color, name, 15)
        picture.note(x + width / 2, 144, what, "middle")
        x += width
    picture.note(24 + 272, 76, "encoded token: what the format writes", "middle")
    picture.note(24 + 544 + 178, 76, "what dispatch adds", "middle")
    picture.lines.append('<line x1="568" y1="62" x2="568" y2="134" stroke="#c0392b" stroke-width="2"/>')

    hidden, top_k = 7168, 8
    picture.text(24, 192, f"To scale: hidden {hidden}, top-{top_k}", size=16, bold=True)
    formats = [("BF16TokenFormat", 16, 0, 1), ("BlockwiseFP8TokenFormat", 8, 4, 128),
               ("MXTokenFormat, fp8", 8, 1, 32), ("MXTokenFormat, fp6", 6, 1, 32), ("MXTokenFormat, fp4", 4, 1, 32),
               ("NVFP4", 4, 1, 16)]
    y, per_byte = 212, 560 / 14368
    for name, bits, scale_bytes, group in formats:
        codes = hidden * bits // 8
        scales = align(hidden // group * scale_bytes, 16)
        total = codes + scales + 16 + align(2 * top_k, 16)
        picture.text(208, y + 21, name, "end")
        x = 220
        for size, color in [(codes, CODES), (scales, SCALES), (16, TOKEN), (align(2 * top_k, 16), IDS)]:
            if size:
                picture.box(x, y, size * per_byte, 30, color, stroke="none")
                x += size * per_byte
        words = f"{codes} + {scales} + 32 = {total} B" if scales else f"{codes} + 32 = {total} B"
        picture.note(x + 10, y + 20, words)
        y += 46
    picture.note(220, y + 16, "codes + scales + source token and ids. Scales: 4 bytes per 128 elements (blockwise fp8),")
    picture.note(220, y + 34, "1 per 32 (MX), 1 per 16 (NVFP4).")
    picture.write("format_messages.svg")


def expert_of_rows(counts, alignment):
    """The expert of each row, or None for padding."""
    rows = []
    for expert, count in enumerate(counts):
        rows += [None] * (align(len(rows), alignment) - len(rows)) + [expert] * count
    return rows + [None] * (align(len(rows), alignment) - len(rows))


def draw_transposed(picture, y):
    picture.text(24, y, "Transposed: blockwise fp8", size=17, bold=True)
    picture.note(24, y + 21, "float [hidden / 128][stride]; experts of 5, 2 and 4 rows start at multiples of 4 rows, 16 bytes")
    rows = expert_of_rows([5, 2, 4], 4)
    left, top, cell = 130, y + 62, 44
    for group in range(3):
        picture.note(left - 10, top + group * 30 + 20, f"group {group}", "end")
        for row, expert in enumerate(rows):
            picture.box(left + row * cell, top + group * 30, cell, 30, PAD if expert is None else EXPERTS[expert],
                        "" if expert is None else f"{group},{row}", 12)
    for row, expert in enumerate(rows):
        picture.note(left + (row + 0.5) * cell, top - 8, str(row), "middle")
    picture.note(left - 10, top - 8, "row", "end")
    picture.note(left, top + 136, "scale (group, row) at float group * stride + row; grey: rows that pad an expert, whose scales mean nothing")
    picture.arrow(left, top + 106, left + 120, top + 106)
    picture.note(left + 128, top + 110, "memory")


def draw_by_row(picture, y):
    picture.text(24, y, "By row: MX", size=17, bold=True)
    picture.note(24, y + 21, "e8m0 [rows][hidden / 32]; rows without gaps")
    rows = expert_of_rows([2, 1, 1], 1)
    left, top, cell = 130, y + 62, 62
    for row, expert in enumerate(rows):
        picture.note(left - 10, top + row * 28 + 19, f"row {row}", "end")
        for group in range(6):
            picture.box(left + group * cell, top + row * 28, cell, 28, EXPERTS[expert],
                        "..." if group == 4 else f"{row},{'last' if group == 5 else group}", 12)
    for group in range(4):
        picture.note(left + (group + 0.5) * cell, top - 8, f"{32 * group}..{32 * group + 31}", "middle")
    picture.note(left - 10, top - 8, "elements", "end")
    picture.arrow(left, top + 126, left + 120, top + 126)
    picture.note(left + 128, top + 130, "memory")


def draw_tiled(picture, y):
    picture.text(24, y, "Tiled: NVFP4, tiled MX", size=17, bold=True)
    picture.note(24, y + 21, "one byte per scale, tiles of 128 rows by 4 columns, 512 bytes; the tiles of the same 128 rows lie one after the other")
    top, cell = y + 74, 34
    # The rows and columns a tile covers.
    left = 130
    picture.text(left + 2 * cell, top - 26, "what it covers", "middle")
    for column in range(4):
        picture.note(left + (column + 0.5) * cell, top - 8, f"c={column}", "middle")
    for band in range(4):
        for column in range(4):
            picture.box(left + column * cell, top + band * 62, cell, 62, EXPERTS[band])
        picture.note(left - 10, top + band * 62 + 16, f"r={32 * band}", "end")
        picture.note(left - 10, top + band * 62 + 56, f"{32 * band + 31}", "end")
    # The bytes of a tile.
    left, cell, height = 400, 33, 31
    picture.text(left + 8 * cell, top - 26, "how it lies in memory: 32 lines of 16 bytes", "middle")
    lines = [0, 1, 2, None, 29, 30, 31]
    for i, line in enumerate(lines):
        picture.note(left - 10, top + i * height + 20, "..." if line is None else f"byte {16 * line}", "end")
        for band in range(4):
            for column in range(4):
                words = "..." if line is None else f"{32 * band + line},{column}"
                picture.box(left + (band * 4 + column) * cell, top + i * height, cell, height, EXPERTS[band], words, 10)
    picture.note(left, top + 7 * height + 24, "scale (r, c) of the tile at byte (r % 32) * 16 + (r / 32) * 4 + c")
    # The order of tiles.
    top += 294
    picture.text(130, top, "the six tiles of 256 rows with 10 scales each, in their order in memory")
    left, size, flat = 130, 84, 36
    for band, name in enumerate(["scale rows 0..127", "scale rows 128..255"]):
        for tile in range(3):
            picture.box(left + tile * size, top + 14 + band * flat, size, flat, EXPERTS[band])
            picture.text(left + (tile + (0.25 if tile == 2 else 0.5)) * size, top + 37 + band * flat, str(3 * band + tile),
                         "middle")
        picture.box(left + 2.5 * size, top + 14 + band * flat, size / 2, flat, PAD, "zeros", 12)
        picture.note(left + 3 * size + 10, top + 37 + band * flat, name)
    picture.note(130, top + 106, "columns that fill the last tile are 0; each expert's scales start at a tile")


def draw_codes(picture, y):
    picture.text(24, y, "Rows of codes", size=17, bold=True)
    picture.note(24, y + 21, "[rows][hidden * bits / 8] bytes, without gaps; the first code is in the lowest bits of the first byte")
    left, top, bit = 130, y + 58, 30
    for byte in range(3):
        picture.note(left + (byte + 0.5) * 8 * bit, top - 8, f"byte {byte}, bits 0 to 7", "middle")
    for i, (name, bits) in enumerate([("fp8", 8), ("fp6", 6), ("fp4", 4)]):
        picture.note(left - 10, top + i * 32 + 20, name, "end")
        for code in range(24 // bits):
            picture.box(left + code * bits * bit, top + i * 32, bits * bit, 32, EXPERTS[code % 4], f"code {code}")
    for byte in range(4):
        x = left + byte * 8 * bit
        picture.lines.append(f'<line x1="{x}" y1="{top - 4}" x2="{x}" y2="{top + 100}" stroke="#222222" stroke-width="2.5"/>')


def draw_tensors():
    picture = Picture(980, 1200)
    draw_codes(picture, 32)
    draw_transposed(picture, 232)
    draw_by_row(picture, 470)
    draw_tiled(picture, 700)
    picture.write("format_tensors.svg")


draw_messages()
draw_tensors()
