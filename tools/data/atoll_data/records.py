"""Reads records from files: JSON Lines, JSON, Parquet, Arrow and text."""
import gzip
import itertools
import json
from pathlib import Path

from .errors import DataError, need

FORMATS = ("alpaca", "chat", "completion", "text")


def read(path, field="text"):
    """Yields (place, record) of a file. A record is a dict; place is for error messages."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    name = path.name[:-3] if path.name.endswith(".gz") else path.name
    ending = name.rpartition(".")[2].lower()
    reader = {"jsonl": _lines, "ndjson": _lines, "json": _json, "parquet": _parquet, "arrow": _arrow,
              "feather": _arrow, "txt": _text, "md": _text, "text": _text}.get(ending)
    if reader is None:
        raise DataError(f"{path}: unknown ending; known are .jsonl, .json, .parquet, .arrow, .txt "
                        "and .md, with .gz behind text and JSON")
    try:
        for place, record in reader(path):
            if isinstance(record, str):
                record = {field: record}
            if not isinstance(record, dict):
                raise DataError(f"{place}: not a record, but {type(record).__name__}")
            yield place, record
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}") from None
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: {error}") from None


def _open(path):
    """Opens text, compressed or not, with the line ends that the file has."""
    opener = gzip.open if path.name.endswith(".gz") else open
    return opener(path, "rt", encoding="utf-8-sig", newline="\n")


def _lines(path):
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip(" \t\r\n"):
                yield f"{path}: line {number}", _parse(line, f"{path}: line {number}")


def _parse(text, place):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from None


def _json(path):
    with _open(path) as file:
        text = file.read()
    first = text.lstrip()[:1]
    if first == "{" and "\n{" in text.strip():  # JSON Lines under another name
        yield from _lines(path)
        return
    records = _parse(text, path)
    if isinstance(records, dict):
        records = records.get("data", [records])
    if not isinstance(records, list):
        raise DataError(f"{path}: not a list of records, but {type(records).__name__}")
    for number, record in enumerate(records, 1):
        yield f"{path}: record {number}", record


def _parquet(path):
    parquet = need("pyarrow.parquet", f"{path}: reading Parquet", "pyarrow")
    try:
        batches = parquet.ParquetFile(path).iter_batches(batch_size=1024)
        yield from _rows(path, batches)
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
        yield from _rows(path, batches)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not an Arrow file: {error}") from None


def _rows(path, batches):
    number = 0
    for batch in batches:
        for record in batch.to_pylist():
            number += 1
            yield f"{path}: row {number}", record


def _text(path):
    """Documents are separated by blank lines, as in atoll-train's own reader."""
    with _open(path) as file:
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
    raise DataError(f"{place}: the keys {', '.join(map(str, record))} fit no format: messages (chat); "
                    "instruction and output (alpaca); prompt and completion; text; or name the key of "
                    "the text with --field")
