"""Tokenizers: tokenizer.json, SentencePiece models, and the trainer's byte tokenizer."""
import bisect
import hashlib
import json
import os
import re
from pathlib import Path

from .errors import DataError, need, parse_json


PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")  # a part of a name in the Hub, or a revision
# The ids of a vocabulary may skip as many numbers as it has tokens, plus this many.
WIDEST_GAP = 1 << 16
# This field, normalizer_spec { add_dummy_prefix: false }, is appended to a SentencePiece model. The last value of a
# field counts, so it overrides the model's value.
NO_SPACE = b"\x1a\x02\x18\x00"
HUB_NAME = re.compile(f"{PLAIN.pattern}/{PLAIN.pattern}(@{PLAIN.pattern})?")


def mask_of(places, spans):
    """b"1" for each token whose characters [begin, end) lie in one of the spans, at least in part."""
    begins = [begin for begin, _ in spans]
    mask = bytearray()
    for begin, end in places:
        # The last span that begins before the token ends is the only one that may reach it.
        span = bisect.bisect_left(begins, end) - 1
        mask.append(ord("1" if end > begin and span >= 0 and begin < spans[span][1] else "0"))
    return bytes(mask)


def common_length(a, b):
    """The number of ids with which both lists begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class Bytes:
    """The trainer's tokenizer `bytes`: ids 0-255 are bytes, 256 bos, 257 eos, 258 pad."""

    name, vocabulary = "bytes", 259
    bos, eos, pad = 256, 257, 258
    special = {"<s>": 256, "</s>": 257}

    def __init__(self):
        self.digest = hashlib.sha256(b"bytes").digest()

    def id_of(self, token):
        return self.special.get(token)

    def ids(self, text):
        return list(text.encode())

    def encode(self, text, spans):
        """The ids of a text with special tokens, and b"1" for each id that lies in a span."""
        ids, places, at = [], [], 0
        for part in split(text, self.special):
            if part in self.special:
                ids.append(self.special[part])
                places.append((at, at + len(part)))
                at += len(part)
                continue
            for char in part:
                data = char.encode()
                ids += data
                places += [(at, at + 1)] * len(data)
                at += 1
        return ids, mask_of(places, spans)

    def pieces(self):
        return [bytes([id]) for id in range(256)] + [b""] * 3


class SentencePiece:
    """A SentencePiece model, as --tokenizer of atoll-train."""

    def __init__(self, path, settings):
        library = need("sentencepiece", f"{path}: a SentencePiece model")
        data = path.read_bytes()
        try:
            self.model = self.inner = library.SentencePieceProcessor(model_proto=data)
            if settings.get("legacy") is False:
                self.inner = library.SentencePieceProcessor(model_proto=data + NO_SPACE)
            self.vocabulary = self.model.get_piece_size()
            self.names = [self.model.id_to_piece(id) for id in range(self.vocabulary)]
        except RuntimeError as error:
            raise DataError(f"{path}: not a SentencePiece model: {error}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: a damaged SentencePiece model: a piece is not UTF-8: {error.reason}") from None
        self.name, self.digest = path.name, hashlib.sha256(data).digest()
        self.bos, self.eos = self.model.bos_id(), self.model.eos_id()
        self.pad = self.model.pad_id() if self.model.pad_id() >= 0 else self.eos
        self.special = {name: id for id, name in enumerate(self.names) if self.model.is_control(id)}

    def id_of(self, token):
        id = self.model.piece_to_id(token)
        return id if self.names[id] == token else None

    def ids(self, text):
        return self.model.encode(text)

    def encode(self, text, spans):
        """Encodes the text between control symbols part by part. SentencePiece puts a space before each part, or, with
        `legacy` false, only before a part that begins the text. A span begins where the ids first differ from those
        of the text before it, and ends with the id that has its last character."""
        ids, mask, at = [], b"", 0
        for part in split(text, self.special):
            encode = (self.inner if at else self.model).encode
            found = [self.special[part]] if part in self.special else encode(part)
            trained = bytearray(b"0" * len(found))
            for begin, end in spans:
                first = self._index(encode, part, found, begin - at)
                last = self._index(encode, part, found, end - at, is_end=True)
                trained[first:last] = b"1" * (last - first)
            ids += found
            mask += trained
            at += len(part)
        return ids, mask

    def _index(self, encode, part, ids, place, is_end=False):
        """The index of the first id at or behind the character at `place` of a part; or, if a span ends there, the
        index behind the id that has the character before."""
        if place <= 0:
            return 0
        if place >= len(part) or part in self.special:
            return len(ids)
        alone = encode(part[:place])
        index = common_length(alone, ids)
        # A piece may extend beyond the place. Then the common ids have less text than the part up to the place.
        missing = sum(map(self._length, alone[index:])) if is_end else 0
        while index < len(ids) and missing > 0:
            missing -= self._length(ids[index])
            index += 1
        return index

    def _length(self, id):
        return len(piece_bytes(self.names[id]))

    def pieces(self):
        return [b"" if self.model.is_control(id) else piece_bytes(name) for id, name in enumerate(self.names)]


class TokenizerJson:
    """A tokenizer.json of Hugging Face's tokenizers."""

    def __init__(self, path, settings):
        library = need("tokenizers", f"{path}: a tokenizer.json")
        data = path.read_bytes()
        try:
            self.model = library.Tokenizer.from_buffer(data)
            self.description = json.loads(data)
        except Exception as error:  # tokenizers raises plain Exception, not a subclass
            raise DataError(f"{path}: not a tokenizer.json: {error}") from None
        self.model.no_truncation()
        self.model.no_padding()
        self.name, self.digest = path.name, hashlib.sha256(data).digest()
        known = self.model.get_vocab(with_added_tokens=True)
        last = max(known, key=known.get, default="")
        self.vocabulary = known.get(last, 0) + 1
        if self.vocabulary > 2 * len(known) + WIDEST_GAP:
            raise DataError(f"{path}: a damaged tokenizer.json: the id of {last!r} is {known[last]}, but there are "
                            f"only {len(known)} tokens")
        added = self.description.get("added_tokens", [])
        self.special = {token["content"]: token["id"] for token in added if token.get("special")}
        self.eos, self.bos = (self.id_of(settings.get(key) or "") for key in ("eos_token", "bos_token"))
        if settings.get("add_bos_token") is False:
            self.bos = None
        self.pad = self.id_of(settings.get("pad_token") or "")
        if self.pad is None:
            self.pad = self.eos

    def id_of(self, token):
        return self.special.get(token, self.model.token_to_id(token))

    def ids(self, text):
        return self.model.encode(text, add_special_tokens=False).ids

    def encode(self, text, spans):
        encoding = self.model.encode(text, add_special_tokens=False)
        return encoding.ids, mask_of(encoding.offsets, spans)

    def pieces(self):
        convert = byte_level if uses_byte_level(self.description) else piece_bytes
        names = [self.model.id_to_token(id) or "" for id in range(self.vocabulary)]
        added = {token["id"] for token in self.description.get("added_tokens", [])}
        return [name.encode() if id in added else convert(name) for id, name in enumerate(names)]


def split(text, special):
    """Splits text at special tokens, which are parts of their own."""
    if not special:
        return [text]
    longest_first = sorted(special, key=len, reverse=True)
    return re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)


def piece_bytes(piece):
    """The text of a piece of SentencePiece: <0x0A> is a byte, and U+2581 a space."""
    if re.fullmatch("<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()


def uses_byte_level(description):
    """Whether a tokenizer.json writes bytes as characters, as GPT-2 does."""
    decoder = description.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    return any(step.get("type") == "ByteLevel" for step in steps)


def byte_level_table():
    """The byte of each character: printable bytes stand for themselves, the others from U+0100 on."""
    table, others = {}, 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            table[chr(byte)] = byte
        else:
            table[chr(256 + others)] = byte
            others += 1
    return table


BYTE_LEVEL = byte_level_table()


def byte_level(piece):
    if all(char in BYTE_LEVEL for char in piece):
        return bytes(BYTE_LEVEL[char] for char in piece)
    return piece.encode()


def cached_folder(name):
    """The folder of a model ORG/NAME or ORG/NAME@REVISION in the Hub's local cache. It may not exist.
    atoll-train looks in the same places (tools/train/model/hub_cache.cpp)."""
    setting = os.environ.get
    caches = Path(setting("XDG_CACHE_HOME") or Path(setting("HOME", "")) / ".cache")
    home = Path(setting("HF_HOME") or caches / "huggingface")
    cache = Path(setting("HF_HUB_CACHE") or home / "hub")
    repository, _, revision = name.partition("@")
    revision = revision or "main"
    model = cache / f"models--{repository.replace('/', '--')}"
    try:
        commit = (model / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        commit = ""
    # A revision that is a commit has no file in refs.
    return model / "snapshots" / (commit if PLAIN.fullmatch(commit) else revision)


def find_files(what):
    """The tokenizer's file and its folder, from a file, a folder, or ORG/NAME[@REVISION] in the cache."""
    place = Path(what)
    if not place.exists() and HUB_NAME.fullmatch(what):
        place = cached_folder(what)
        if not place.is_dir():
            repository, _, revision = what.partition("@")
            raise DataError(f"--tokenizer {what}: {place} does not exist: download it with `hf download "
                            f"{repository}{' --revision ' + revision if revision else ''}`, or set "
                            "HF_HUB_CACHE to the cache that has it; the folder of a model works as well")
    if place.is_dir():
        found = [place / name for name in ("tokenizer.json", "tokenizer.model")]
        file = next((file for file in found if file.is_file()), None)
        if file is None:
            raise DataError(f"--tokenizer {what}: the folder has no tokenizer.json or tokenizer.model")
        return file, place
    if not place.is_file():
        raise DataError(f"--tokenizer {what}: use bytes, a tokenizer.json, a SentencePiece model, or the "
                        "folder of a model")
    return place, place.parent


def read_json(path):
    try:
        value = parse_json(path.read_text(encoding="utf-8"), path, whole_file=True)
    except OSError:
        return {}
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}") from None
    return value if isinstance(value, dict) else {}


def settings_of(folder):
    """tokenizer_config.json, in which special tokens are strings."""
    settings = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    settings = {key: value["content"] if isinstance(value, dict) and "content" in value else value
                for key, value in settings.items()}
    for key in ("bos_token", "eos_token", "pad_token"):
        if not isinstance(settings.get(key) or "", str):
            raise DataError(f"{folder / 'tokenizer_config.json'}: `{key}` is neither a string nor an object with "
                            "`content`")
    return settings


def override(tokenizer, what, name, token):
    """Makes a token the tokenizer's bos or eos."""
    id = tokenizer.id_of(token)
    if id is None:
        some = ", ".join(list(tokenizer.special)[:8]) or "none"
        raise DataError(f"--{name} {token}: --tokenizer {what} has no such token; its special tokens "
                        f"begin with {some}")
    if name == "eos" and tokenizer.pad == tokenizer.eos:
        tokenizer.pad = id
    setattr(tokenizer, name, id)


def package_of(what):
    """The Python package that a tokenizer needs, and what for."""
    if what == "bytes":
        return {}
    file = find_files(what)[0]
    is_json = file.suffix == ".json"
    return {"tokenizers": f"{file}: a tokenizer.json"} if is_json else {"sentencepiece": f"{file}: a SentencePiece model"}


def load(what, overrides):
    """Returns the tokenizer and its settings. `overrides` has the tokens of --bos and --eos, or None."""
    given = {f"{name}_token": token for name, token in overrides.items() if token is not None}
    if what == "bytes":
        tokenizer, settings = Bytes(), {"bos_token": "<s>", "eos_token": "</s>"} | given
    else:
        file, folder = find_files(what)
        settings = settings_of(folder) | given
        tokenizer = (TokenizerJson if file.suffix == ".json" else SentencePiece)(file, settings)
    for name, token in overrides.items():
        if token is not None:
            override(tokenizer, what, name, token)
    if isinstance(tokenizer, SentencePiece):
        names = {id: text for text, id in tokenizer.special.items()}
        settings.setdefault("bos_token", names.get(tokenizer.bos, ""))
        settings.setdefault("eos_token", names.get(tokenizer.eos, ""))
    return tokenizer, settings
