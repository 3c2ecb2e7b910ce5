#!/usr/bin/env python3
"""The pages of atoll-train, atoll-plan and atoll-busbw in a real browser: no errors, nothing fetched, and something drawn.

  rendered.py ATOLL_TRAIN ATOLL_PLAN ATOLL_BUSBW

Exits with 77 without Chromium. With ATOLL_TEST_PAGES=FOLDER the pages and their pictures stay there, to be looked at."""
import html.parser
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

TRAIN, PLAN, BUSBW = sys.argv[1:4]
BROWSER = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
if BROWSER is None:
    print("skipped: Chromium is not installed")
    sys.exit(77)


def run(*arguments):
    done = subprocess.run([str(word) for word in arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done


class Document(html.parser.HTMLParser):
    """The texts of a document, without those of its scripts and styles, and how often it has each element."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.text, self.inside = {}, "", []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.inside.append(tag)
        self.elements[tag] = self.elements.get(tag, 0) + 1

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.inside and self.inside[-1] not in ("script", "style"):
            self.text += data + "\n"


def pixels(file):
    """The rows of an 8-bit PNG without interlacing, which is what Chromium writes."""
    data, at, packed = file.read_bytes(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
        if kind == b"IDAT":
            packed += body
        at += 12 + size
    assert depth == 8 and colour in (2, 6), f"{file}: {depth} bits, colour type {colour}"
    step, plain = (3 if colour == 2 else 4), zlib.decompress(packed)
    row_bytes, before = width * step, bytes(width * step)
    for y in range(height):
        kind, row = plain[y * (row_bytes + 1)], bytearray(plain[y * (row_bytes + 1) + 1:(y + 1) * (row_bytes + 1)])
        for x in range(row_bytes):
            left, up, corner = row[x - step] if x >= step else 0, before[x], before[x - step] if x >= step else 0
            nearest = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
            row[x] = (row[x] + (0, left, up, (left + up) // 2, nearest)[kind]) & 255
        before = bytes(row)
        yield [before[x:x + 3] for x in range(0, row_bytes, step)]


def check(page, charts, *parts):
    folder = page.parent
    picture = folder / (page.stem + ".png")
    # No name resolves, so a page that needs the network would show an error.
    done = run(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
               "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1000,700", "--virtual-time-budget=2000",
               f"--user-data-dir={folder / 'browser'}", f"--screenshot={picture}", "--dump-dom", page.as_uri())
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not errors, errors
    document = Document(done.stdout)
    drawn = document.elements.get("svg", 0)
    assert drawn >= charts, f"{page}: {drawn} charts"
    missing = [part for part in parts if part not in document.text]
    assert not missing, f"{page}: lacks {missing}: {document.text}"
    colours, used = {}, 0
    for row in pixels(picture):
        for colour in row:
            colours[colour] = colours.get(colour, 0) + 1
    most = max(colours.values())
    used = 1 - most / sum(colours.values())
    assert len(colours) > 30 and used > 0.05, f"{page}: {len(colours)} colours, {100 * used:.1f} % beside the background"
    print(f"{page.name}: {len(colours)} colours, {100 * used:.0f} % beside the most frequent one")


    return document


def check_hostile(folder):
    """Text of a run that looks like markup is shown as text."""
    attack = "</script><script>document.title='hit'</script><!-- <img src=x onerror=alert(1)> &amp;"
    place = folder / "run0"
    for name, change in (("metrics.json", {"run_name": attack, "model": attack}), ("run_args.json", {"mesh_reason": attack})):
        (place / name).write_text(json.dumps(dict(json.loads((place / name).read_text()), **change)))
    run(TRAIN, "report", place)
    document = check(place / "report.html", 4, attack, f"Chosen because {attack}")
    assert "img" not in document.elements and document.elements["script"] == 2, document.elements


def main(folder):
    for seed in (0, 1):
        run(TRAIN, "--data", "demo", "--steps", 30, "--seq", 64, "--threads", 1, "--peak-seconds", 0.01, "--no-checkpoint",
            "--quiet", "--seed", seed, "--trace", folder / "trace.json", "--out", folder / f"run{seed}")
    run(TRAIN, "compare", folder / "run0", folder / "run1", "--html", folder / "compare.html")
    run(PLAN, "--model", "qwen2.5-7b", "--hosts", 4, "--micro-batch", 1, "--html", folder / "plan.html")
    run(BUSBW, "--collective", "broadcast,all_gather", "-b", "1K", "-e", "64K", "-f", 4, "-n", 2, "--plot", folder / "busbw.html")
    shutil.copy(folder / "run0" / "report.html", folder / "report.html")
    check(folder / "report.html", 8, "Loss", "Memory plan of a rank", "the median of the traced steps", "Memory over the step",
          "Use of processors", "1 replica of 1 shard", "Settings")
    check(folder / "compare.html", 4, "2 runs compared", "Settings that differ", "seed", "Gradient norm")
    check(folder / "plan.html", 4, "Candidates", "hybrid_shard", "Timeline of one step", "Memory of a rank", "Growth over hosts")
    check(folder / "busbw.html", 1, "broadcast float, in place", "64 KiB")
    check_hostile(folder)


if keep := os.environ.get("ATOLL_TEST_PAGES"):
    main(Path(keep).resolve())
else:
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
