"""Writes and reads token files, whose format tools/train/data/token_files.md describes."""
import array
import glob
import hashlib
import os
import re
import stat
import struct
import sys
import tempfile
import time
from pathlib import Path

from .errors import DataError

MAGIC = b"ATOLLTOK"
VERSION = 2  # version 1 has no digest of the header
HEADER_BYTES = 256
MASK, JOINED, PIECES = 1, 2, 4
NO_TOKEN = 0xFFFFFFFF
FIELDS = struct.Struct("<8sIIIIIIQQ16s32s64s")  # the header up to its own digest
BLOCK = 1 << 20

drafts = set()  # unfinished files of this process


def remove_drafts():
    """Removes unfinished files and returns whether there were any; for a process that ends early."""
    found = [draft for draft in drafts if draft.exists()]
    for draft in found:
        draft.unlink(missing_ok=True)
    return bool(found)


def place_tag():
    """Names this boot of the host and its namespace of process ids, like place_tag() of the trainer.

    Empty if these cannot be read.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        space = os.readlink("/proc/self/ns/pid")  # "pid:[4026531836]"
    except OSError:
        return ""
    return f"{boot[:8]}-{space[5:-1]}-"


def is_abandoned(draft, tag):
    """Returns true if the process that wrote the draft has ended.

    A draft of another host or container counts as abandoned after one hour without changes.
    """
    place = place_tag()
    try:
        if not place or not tag.startswith(place):
            return time.time() - draft.stat().st_mtime > 3600
        os.kill(int(tag[len(place):]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def digest_of(header):
    return hashlib.blake2b(header, digest_size=16).digest()


def type_code(width):
    """The array type of ids of `width` bytes."""
    return "H" if width == 2 else "I"


def little(values):
    """The bytes of an array, little-endian."""
    if sys.byteorder == "big":
        values = array.array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def check_output(path, inputs):
    """Refuses to write over anything but an older token file, since a wrong -o would destroy it."""
    try:
        kind = os.stat(path).st_mode
        for source in inputs:
            if os.path.exists(source) and os.path.samefile(source, path):
                raise DataError(f"-o {path}: this is the input {source}: name another file")
        if stat.S_ISDIR(kind):
            raise DataError(f"-o {path}: this is a folder: name a file in it")
        if not stat.S_ISREG(kind):
            raise DataError(f"-o {path}: this is a pipe, a socket or a device: name a file, which can be "
                            "renamed when it is complete")
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) not in (b"", MAGIC):
                raise DataError(f"-o {path}: this file exists and is no token file: name another file, or "
                                "remove it")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DataError(f"-o {path}: {error.strerror}") from None


class Writer:
    """Writes a token file under a temporary name and renames it when it is complete."""

    def __init__(self, path, tokenizer, joined, masked):
        self.path = Path(path)
        self.tokenizer = tokenizer
        self.joined = joined
        self.masked = masked
        self.width = 2 if tokenizer.vocabulary <= 1 << 16 else 4
        self.documents = self.tokens = 0
        self.hash = hashlib.blake2b(digest_size=16)
        self.target = Path(os.path.realpath(path))  # the file that symbolic links lead to, so that the links stay
        self.draft = self.target.with_name(f"{self.target.name}.{place_tag()}{os.getpid()}.tmp")
        self._remove_old_drafts()
        drafts.add(self.draft)
        try:
            self.file = open(self.draft, "wb")
            # Offsets and mask follow the tokens, so they wait in files without a name.
            self.offsets = tempfile.TemporaryFile(dir=self.target.parent)
            self.mask = tempfile.TemporaryFile(dir=self.target.parent)
        except OSError as error:
            self.draft.unlink(missing_ok=True)
            raise DataError(f"{self.path}: {error.strerror}") from None
        self.file.write(bytes(HEADER_BYTES))
        self.offsets.write(struct.pack("<Q", 0))
        self.bits = bytearray()

    def _remove_old_drafts(self):
        """Removes what killed conversions into this file have left."""
        for draft in self.target.parent.glob(glob.escape(self.target.name) + ".*.tmp"):
            tag = draft.name[len(self.target.name) + 1:-len(".tmp")]
            if re.fullmatch("([0-9a-f]+-[0-9]+-)?[0-9]+", tag) and is_abandoned(draft, tag):
                draft.unlink(missing_ok=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.draft.unlink(missing_ok=True)  # before close(), which fails on a full disk
        for file in (self.file, self.offsets, self.mask):
            try:
                file.close()
            except OSError:
                pass  # finish() has written everything, or the draft is gone

    def add(self, ids, lengths, mask):
        """Appends documents: the bytes of all their ids, their lengths, and b"0" or b"1" per token."""
        self._append(ids)
        ends = array.array("Q")
        for length in lengths:
            self.tokens += length
            ends.append(self.tokens)
        self.documents += len(lengths)
        self.offsets.write(little(ends))
        if self.masked:
            self.bits += mask
            self._pack(len(self.bits) // 64 * 64)

    def _append(self, data):
        self.hash.update(data)
        self.file.write(data)

    def _pack(self, count):
        """Writes the first `count` bits of the mask; the first token is the lowest bit."""
        if count:
            word = int(bytes(self.bits[:count][::-1]), 2)
            self.mask.write(word.to_bytes((count + 63) // 64 * 8, "little"))
            del self.bits[:count]

    def finish(self):
        """Completes the file and gives it its name."""
        self._append(bytes(-self.tokens * self.width % 8))
        self._pack(len(self.bits))
        for file in (self.offsets, self.mask):
            file.seek(0)
            while block := file.read(BLOCK):
                self._append(block)
        pieces = self.tokenizer.pieces()
        if pieces:
            ends = array.array("I", [0])
            for piece in pieces:
                ends.append(ends[-1] + len(piece))
            self._append(little(ends) + b"".join(pieces))
        flags = (MASK if self.masked else 0) | (JOINED if self.joined else 0)
        self._header(flags | (PIECES if pieces else 0))
        self.file.flush()
        os.fsync(self.file.fileno())
        os.replace(self.draft, self.target)

    def _header(self, flags):
        tokenizer = self.tokenizer
        special = [NO_TOKEN if id is None else id for id in (tokenizer.pad, tokenizer.eos)]
        self.file.seek(0)
        header = FIELDS.pack(MAGIC, VERSION, flags, self.width, tokenizer.vocabulary, *special, self.documents,
                             self.tokens, self.hash.digest(), tokenizer.digest, tokenizer.name.encode()[:63])
        self.file.write(header + digest_of(header))


def check(path):
    """Reads a whole token file. Returns its figures; raises DataError if it is damaged."""
    try:
        with open(path, "rb") as file:
            return _check(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def _check(path, file, size):
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES or header[:8] != MAGIC:
        raise DataError(f"{path}: byte 0: not a token file of atoll-data")
    (_, version, flags, width, vocabulary, pad, eos, documents, tokens, fingerprint, _,
     name) = FIELDS.unpack(header[:FIELDS.size])
    if not 1 <= version <= VERSION or width not in (2, 4):
        raise DataError(f"{path}: byte 8: version {version} with ids of {width} bytes is not known")
    if flags & ~(MASK | JOINED | PIECES):
        raise DataError(f"{path}: byte 12: unknown flags")
    if not 1 <= vocabulary < 1 << 31:
        raise DataError(f"{path}: byte 20: a vocabulary of {vocabulary} tokens")
    for at, id in ((24, pad), (28, eos)):
        if id != NO_TOKEN and id >= vocabulary:
            raise DataError(f"{path}: byte {at}: special id {id} is not in a vocabulary of {vocabulary} tokens")
    rest = header[FIELDS.size:]
    if version == VERSION:
        if rest[:16] != digest_of(header[:FIELDS.size]):
            raise DataError(f"{path}: byte {FIELDS.size}: the header does not have its fingerprint")
        rest = rest[16:]
    if any(rest):
        raise DataError(f"{path}: byte {FIELDS.size}: unknown content in the header")
    if tokens < 1 or documents < 1:
        raise DataError(f"{path}: no tokens or no documents")
    offsets_at = HEADER_BYTES + (tokens * width + 7) // 8 * 8
    mask_at = offsets_at + (documents + 1) * 8
    end = mask_at + ((tokens + 63) // 64 * 8 if flags & MASK else 0)
    if end > size or (end < size and not flags & PIECES):
        raise DataError(f"{path}: {size} bytes do not hold {tokens} tokens in {documents} documents")
    digest, trained, largest = hashlib.blake2b(digest_size=16), 0, 0
    at = HEADER_BYTES
    # Blocks end where sections end, so that each block belongs to one section.
    for stop in (HEADER_BYTES + tokens * width, offsets_at, mask_at, end, size):
        while at < stop and (block := file.read(min(BLOCK, stop - at))):
            digest.update(block)
            if at < HEADER_BYTES + tokens * width:
                ids = array.array(type_code(width), block)
                if sys.byteorder == "big":
                    ids.byteswap()
                largest = max(largest, max(ids))
            elif mask_at <= at < end:
                trained += int.from_bytes(block, "little").bit_count()
            at += len(block)
    if digest.digest() != fingerprint:
        raise DataError(f"{path}: byte 48: the content does not have the fingerprint of the header")
    if largest >= vocabulary:
        raise DataError(f"{path}: id {largest} is not in a vocabulary of {vocabulary} tokens")
    return {"documents": documents, "tokens": tokens, "vocabulary": vocabulary,
            "trained": trained if flags & MASK else tokens, "joined": bool(flags & JOINED),
            "eos": None if eos == NO_TOKEN else eos,
            "tokenizer": name.rstrip(b"\0").decode(errors="replace")}
