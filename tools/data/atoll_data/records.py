"""Reads records from files: JSON Lines, JSON, Parquet, Arrow and text."""
import codecs
import gzip
import itertools
import zlib
from pathlib import Path

from .errors import DataError, need, parse_json

FORMATS = ("alpaca", "chat", "completion", "text")


class Extent:
    """How many bytes of all files were read. Each reader sets `part`, which returns the part of its file."""

    def __init__(self):
        self.before, self.size, self.part = 0, 0, lambda: 0

    def bytes(self):
        return self.before + self.size * self.part()


extent = Extent()


def read(path, field="text", ending=None):
    """Yields (place, record) of a file, whose name may have another ending than it should. A record is a dict, or the
    DataError of one that cannot be read while those behind it can. place is for error messages."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: a folder; name the files in it")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    name = path.name[:-3] if path.name.endswith(".gz") else path.name
    ending = ending or name.rpartition(".")[2].lower()
    reader = {"jsonl": _lines, "ndjson": _lines, "json": _json, "parquet": _parquet, "arrow": _arrow,
              "feather": _arrow, "txt": _text, "md": _text, "text": _text}.get(ending)
    if ending in ("pdf", "doc", "docx", "epub", "html", "htm"):
        raise DataError(f"{path}: a .{ending} file; write its text to a .txt file first")
    if reader is None:
        raise DataError(f"{path}: unknown ending; known are .jsonl, .json, .parquet, .arrow, .txt "
                        "and .md, with .gz behind text and JSON")
    try:
        if reader not in (_parquet, _arrow):
            _check_encoding(path)
        extent.size = path.stat().st_size
        for place, record in reader(path):
            if isinstance(record, str):
                record = {field: record}
            if not isinstance(record, (dict, DataError)):
                record = DataError(f"{place}: not a record, but {type(record).__name__}")
            yield place, record
        extent.before, extent.size, extent.part = extent.before + extent.size, 0, lambda: 0
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}") from None
    except (EOFError, zlib.error):
        raise DataError(f"{path}: its gzip data is damaged or cut off") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _check_encoding(path):
    """PowerShell and spreadsheets write UTF-16: a byte order mark, or zeros beside ASCII characters."""
    with _open(path) as file:
        start = file.read(2)
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in start:
        raise DataError(f"{path}: not UTF-8, but UTF-16 or binary: convert text with iconv -f UTF-16 -t UTF-8 {path} > "
                        "NEW")


def _open(path, mode="rb", **how):
    """Opens a file, compressed or not."""
    file = (gzip.open if path.name.endswith(".gz") else open)(path, mode, **how)
    stored = getattr(file, "buffer", file)  # below the text, and below it what is compressed
    stored = getattr(stored, "fileobj", stored)
    extent.part = lambda: stored.tell() / (extent.size or 1)
    return file


def _open_text(path):
    """Opens text with the line ends that the file has."""
    return _open(path, "rt", encoding="utf-8-sig", newline="\n")


def _lines(path):
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip(b" \t\r\n"):
                place = f"{path}: line {number}"
                yield place, _line(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, place)


def _line(line, place):
    """The record of a line, or its error."""
    try:
        record = parse_json(line.decode(), place)
        if isinstance(record, list):
            return DataError(f"{place}: not a record, but list; if the file is one list of records, give it the ending "
                             ".json")
        return record
    except UnicodeDecodeError as error:
        return DataError(f"{place}: not UTF-8: {error.reason}")
    except DataError as error:
        return error


def _json(path):
    with _open_text(path) as file:
        text = file.read()
    if not text.strip():
        return
    try:
        records = parse_json(text, path, whole_file=True)
    except DataError:
        first = text.strip().partition("\n")[0].rstrip()
        if not (first.startswith("{") and first.endswith("}")):  # otherwise the file is JSON Lines under another name
            raise
        yield from _lines(path)
        return
    if isinstance(records, dict):
        records = records.get("data", [records])
    if not isinstance(records, list):
        raise DataError(f"{path}: not a list of records, but {type(records).__name__}")
    extent.part = lambda: number / len(records)
    for number, record in enumerate(records, 1):
        yield f"{path}: record {number}", record


def _parquet(path):
    parquet = need("pyarrow.parquet", f"{path}: reading Parquet")
    try:
        file = parquet.ParquetFile(path)
        yield from _rows(path, file.iter_batches(batch_size=1024), file.metadata.num_rows)
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not a Parquet file: {error}") from None


def _arrow(path):
    """Arrow files and streams; the datasets library writes streams."""
    arrow = need("pyarrow", f"{path}: reading Arrow")
    source = arrow.memory_map(str(path))
    try:
        try:
            reader = arrow.ipc.open_file(source)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        except arrow.ArrowInvalid:
            batches = arrow.ipc.open_stream(source)
        extent.part = lambda: source.tell() / (extent.size or 1)
        yield from _rows(path, batches)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not an Arrow file: {error}") from None


def _rows(path, batches, rows=0):
    number = 0
    if rows:
        extent.part = lambda: number / rows
    for batch in batches:
        for record in batch.to_pylist():
            number += 1
            yield f"{path}: row {number}", record


def _text(path):
    """Documents are separated by blank lines."""
    with _open_text(path) as file:
        document, begin = [], 0
        for number, line in enumerate(itertools.chain(file, [""]), 1):
            if line.strip(" \t\r\n"):
                begin = begin or number
                document.append(line)
            elif document:
                document[-1] = document[-1].removesuffix("\n")
                yield f"{path}: line {begin}", "".join(document)
                document, begin = [], 0


def format_of(place, record, field="text"):
    """Tells a record's format from its keys."""
    if "messages" in record or "conversations" in record:
        return "chat"
    if "instruction" in record and "output" in record:
        return "alpaca"
    if "prompt" in record and "completion" in record:
        return "completion"
    if field in record:
        return "text"
    if field != "text":
        raise DataError(f"{place}: no key {field}, which --field names; the keys are "
                        f"{', '.join(map(str, record))}")
    raise DataError(f"{place}: the keys {', '.join(map(str, record))} fit no format: messages (chat); "
                    "instruction and output (alpaca); prompt and completion; text; or name the key of "
                    "the text with --field")
