#!/usr/bin/env python3
"""atoll-data refuses what would destroy files or train nothing, and names the file, line or flag."""
import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from python import HERE, SOURCE, TOOL, atoll_data, has

from atoll_data import token_file

GOOD = json.dumps({"instruction": "Say", "output": "yes"}) + "\n"
BYTES = ("--tokenizer", "bytes")
TEMPLATE = HERE / "templates" / "qwen25.jinja"


def says(text, *parts):
    for part in parts:
        assert str(part) in text, f"{part!r} is not in {text!r}"


def check_outputs(folder):
    """-o replaces an older token file, and nothing else."""
    source = folder / "a.jsonl"
    source.write_text(GOOD)
    (folder / "link.jsonl").symlink_to(source)
    (folder / "hard.jsonl").hardlink_to(source)
    empty = folder / "empty.jsonl"
    empty.touch()
    for out in (source, folder / "link.jsonl", folder / "hard.jsonl", folder / "x" / ".." / "a.jsonl"):
        (folder / "x").mkdir(exist_ok=True)
        says(atoll_data(source, *BYTES, "-o", out, code=1), f"-o {out}: this is the input {source}",
             "name another file")
    says(atoll_data(source, empty, *BYTES, "-o", empty, code=1), f"this is the input {empty}")
    other = folder / "notes.txt"
    other.write_text("hours of work")
    says(atoll_data(source, *BYTES, "-o", other, code=1), f"-o {other}: ", "is no token file", "remove it")
    assert source.read_text() == GOOD and other.read_text() == "hours of work"
    places = [folder / "pipe"]
    os.mkfifo(places[0])
    try:
        os.mknod(folder / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # the same device as /dev/null
        places.append(folder / "device")
    except OSError as error:
        print(f"skipped a device: {error}")
    (folder / "to-pipe").symlink_to(places[0])
    for out in (*places, folder / "to-pipe"):
        says(atoll_data(source, *BYTES, "-o", out, code=1), f"-o {out}: this is a pipe, a socket or a device")
        assert not stat.S_ISREG(out.stat().st_mode), out
    says(atoll_data(source, *BYTES, "-o", folder / "x", code=1), "this is a folder: name a file in it")
    # A token file and an empty file are replaced; a link to one stays a link.
    real, link = folder / "x" / "real.tok", folder / "link.tok"
    real.touch()
    link.symlink_to(real)
    for options in ((), ("--train-on", "all")):
        atoll_data(source, *BYTES, "-o", link, *options)
        assert link.is_symlink() and token_file.check(real)["documents"] == 1
    assert token_file.check(real)["trained"] == token_file.check(real)["tokens"]
    assert not list(folder.rglob("*.tmp"))
    print("outputs never destroy an input or another file")


def check_flags(folder):
    source, out = folder / "a.jsonl", folder / "a.tok"
    source.write_text(GOOD)
    for flag, value in (("--samples", -5), ("--samples", 0), ("--samples", "x"), ("--processes", -3),
                        ("--processes", 0), ("--processes", 100000), ("--show", -3)):
        for more in ((), ("-o", out)):
            says(atoll_data(source, *BYTES, *more, flag, value, code=2), f"{flag}: {value} is not a whole")
    says(atoll_data(source, *BYTES, "--show", 0, code=2), "name the token file to write with -o")
    for flag, *values in (("--tokenizer", "bytes", "x"), ("--samples", 1, 1), ("--bos", "<s>", "<s>"),
                          ("-o", out, out), ("--format", "auto", "auto")):
        flags = [word for value in values for word in (flag, value)]
        more = () if flag == "--tokenizer" else BYTES
        says(atoll_data(source, *flags, *more, code=2), flag, ": given twice")
    says(atoll_data(source, *BYTES, "-o", out, "--skip-bad", "--skip-bad", code=2), "--skip-bad: given twice")
    says(atoll_data(source, *BYTES, "-o", out, "--template-args", '{"a": 1', code=2),
         "--template-args: not JSON: it ends in the middle")
    assert not out.exists()
    print("wrong and repeated flags are refused by name")


def ids_of(path):
    """The ids of a token file with two bytes for each."""
    data = path.read_bytes()
    count = int.from_bytes(data[40:48], "little")
    return [int.from_bytes(data[at:at + 2], "little") for at in range(256, 256 + 2 * count, 2)]


def check_tokens(folder):
    """--bos and --eos name tokens of the tokenizer, and are used."""
    source, out = folder / "a.jsonl", folder / "a.tok"
    source.write_text(GOOD)
    made = [("bytes", "</s>", 257, "<s>", 256)]
    if has("sentencepiece"):
        import sentencepiece
        model = SOURCE / "tests" / "train" / "tokenizer.model"
        library = sentencepiece.SentencePieceProcessor(model_file=str(model))
        made.append((model, "</s>", library.eos_id(), "<s>", library.bos_id()))
    if has("tokenizers"):
        import tokenizers
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
        words.add_special_tokens(["<b>", "<e>"])
        words.save(str(folder / "tokenizer.json"))
        settings = {"eos_token": "<e>", "add_bos_token": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        made.append((folder / "tokenizer.json", "<b>", 1, "<e>", 2))
    for tokenizer, bos, bos_id, eos, eos_id in made:
        options = ("--tokenizer", tokenizer, "-o", out)
        for flag in ("--bos", "--eos"):
            for token in ("<zz>", ""):
                says(atoll_data(source, *options, flag, token, code=1),
                     f"{flag} {token}: --tokenizer {tokenizer} has no such token", bos)
        assert not out.exists()
        atoll_data(source, *options, "--bos", bos, "--eos", eos)
        ids = ids_of(out)
        assert (ids[0], ids[-1]) == (bos_id, eos_id), f"{tokenizer}: {ids}"
        assert int.from_bytes(out.read_bytes()[28:32], "little") == eos_id
        out.unlink()
    print("--bos and --eos are tokens of the tokenizer")


def check_damage(folder):
    """A damaged tokenizer is one line that names its file, and takes neither time nor memory."""
    source, out = folder / "a.jsonl", folder / "a.tok"
    source.write_text(GOOD)
    if has("sentencepiece"):
        whole = (SOURCE / "tests" / "train" / "tokenizer.model").read_bytes()
        at = whole.index("\u2581the".encode())
        model = folder / "tokenizer.model"
        model.write_bytes(whole[:at] + b"\xff" + whole[at + 1:])
        says(atoll_data(source, "--tokenizer", model, "-o", out, code=1), f"{model}: a damaged SentencePiece model")
    if has("tokenizers"):
        import tokenizers
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "<e>": 1}, unk_token="x"))
        file = folder / "tokenizer.json"
        file.write_text(words.to_str())
        settings = folder / "tokenizer_config.json"
        for wrong in (5, ["<e>"], {"id": 1}, {"content": 5}):
            settings.write_text(json.dumps({"eos_token": wrong}))
            says(atoll_data(source, "--tokenizer", folder, "-o", out, code=1), f"{settings}: `eos_token` is neither")
        settings.unlink()
        file.write_text(words.to_str().replace('"<e>":1', '"<e>":1000000000'))
        says(atoll_data(source, "--tokenizer", file, "--eos", "<e>", "-o", out, code=1),
             f"{file}: a damaged tokenizer.json: the id of '<e>' is 1000000000")
    print("damaged tokenizers are refused")


def check_chats(folder):
    """A chat has answers, and each message a content."""
    if not has("jinja2"):
        return
    source, out = folder / "c.jsonl", folder / "c.tok"
    options = (*BYTES, "--template", TEMPLATE, "-o", out)
    user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    good = json.dumps({"messages": [user, answer]}) + "\n"
    bad = [({"messages": [user]}, "no answer of the assistant"),
           ({"prompt": [user, answer], "completion": [user], "messages": [user]}, "no answer of the"),
           ({"messages": [user, {"role": "assistant"}]}, "message 2 has no `content`"),
           ({"messages": [{"role": "user", "content": None}, answer]}, "message 1 has no `content`"),
           ({"messages": [user, "a"]}, "message 2 is not an object with `role` and `content`"),
           ({"conversations": [{"from": "user", "value": "q"}, {"from": "gpt"}]}, "message 2 has no `value`"),
           ({"conversations": [{"from": ["gpt"], "value": "q"}]}, "message 1 has no `from`")]
    for record, reason in bad:
        source.write_text(good + json.dumps(record) + "\n")
        says(atoll_data(source, *options, code=1), f"{source}: line 2: {reason}")
        assert not out.exists()
    source.write_text(good + "".join(json.dumps(record) + "\n" for record, _ in bad))
    text = atoll_data(source, *options, "--skip-bad")
    says(text, f"skipped: {source}: line 8: message 1 has no `from`", "1 documents", f"{len(bad)} skipped")
    pair = {"prompt": [user, answer], "completion": [user]}
    source.write_text(json.dumps(pair) + "\n")
    says(atoll_data(source, *options, code=1), "line 1: no answer of the assistant", "--train-on all")
    # Prompts alone may be trained on purpose, and an assistant that calls a tool may say nothing.
    source.write_text(json.dumps({"messages": [user]}) + "\n")
    atoll_data(source, *options, "--train-on", "all")
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    source.write_text(json.dumps({"messages": [user, call, user, answer]}) + "\n")
    says(atoll_data(source, *options, code=1), "line 1: ", "message 2 calls tools, which the template does not write")
    writes = folder / "calls.jinja"
    writes.write_text(TEMPLATE.read_text().replace("{{ message.content }}",
                                                   "{{ message.content or message.tool_calls }}"))
    atoll_data(source, *BYTES, "--template", writes, "-o", out)
    print("chats without answers or contents are refused")


def check_json(folder):
    """Broken JSON is named with file and line, and --skip-bad leaves out what it can."""
    out = folder / "out.tok"

    def refused(name, content, *parts):
        file = folder / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        text = atoll_data(file, *BYTES, "-o", out, "--processes", 2, code=1)
        says(text, f"{file}: ", *parts)
        for word in ("Expecting", "delimiter", "char ", "Extra data", "Unterminated", "codec", "Errno"):
            assert word not in text, text
        return text

    cut = "not JSON: it ends in the middle; it was cut off"
    refused("a.jsonl", GOOD * 200 + '{"instruction": "Sa', "line 201: " + cut)
    refused("a.jsonl", GOOD + "{\n", "line 2: " + cut)
    refused("a.jsonl", GOOD + '{"instruction": x}\n', "line 2: not JSON: unexpected 'x' in column 17")
    refused("a.jsonl", GOOD + GOOD.strip() + GOOD, "line 2: not JSON: more text follows behind its end")
    refused("a.jsonl", GOOD + "[" * 100_000, "line 2: not JSON: nested too deeply")
    refused("a.jsonl", GOOD + "9" * 5000, "line 2: not JSON: a number has too many digits")
    refused("a.jsonl", GOOD.encode() + b'{"instruction": "\xff"}\n', "line 2: not UTF-8")
    for name in ("u.jsonl", "u.json", "u.txt"):
        for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
            refused(name, GOOD.encode(encoding), "not UTF-8, but UTF-16", "iconv")
    records = f"[\n{GOOD.strip()},\n{GOOD}]"
    refused("a.json", records[:-2], "a.json: line 3: " + cut)
    refused("a.json", records[:60], "a.json: line 3: " + cut)
    refused("a.json", records.replace("},", "}"), "a.json: line 3: not JSON: unexpected '{' in column 1")
    refused("a.json", '[\n{"a": "b\n}]', "a.json: line 2: not JSON: a string is not closed before the line")
    refused("a.json", '{"data": ' + records, "a.json: line 4: " + cut)
    refused("a.json", GOOD * 2 + "{\n", "a.json: line 3: " + cut)  # JSON Lines under another name
    refused("a.json", " \n", "no record")
    packed = gzip.compress(GOOD.encode() * 5000, 0)
    refused("a.jsonl.gz", packed[:-100], "its gzip data is damaged or cut off")
    refused("a.jsonl.gz", packed[:20] + b"\xff" * 50 + packed[70:], "a.jsonl.gz")
    assert not out.exists()
    good = folder / "good.json"
    good.write_text('{"data": ' + records + "}")
    atoll_data(good, *BYTES, "-o", out)
    assert token_file.check(out)["documents"] == 2

    # --skip-bad converts the records that can be read, whether a good or a bad record comes first.
    bad = ("{\n", "[1]\n", "3\n", '{"x": 1}\n', '{"instruction": "Say"}\n')
    mixed = folder / "mixed.jsonl"
    mixed.write_bytes(b"\xef\xbb\xbf" + ("".join(bad) + GOOD * 2 + "".join(bad)).encode() + b"\xff\n"
                      + GOOD.encode() + b'{"instr')
    says(atoll_data(mixed, *BYTES, "-o", out, code=1), "line 1: " + cut)
    for processes in (1, 2):
        text = atoll_data(mixed, *BYTES, "-o", out, "--skip-bad", "--processes", processes)
        says(text, f"skipped: {mixed}: line 1: {cut}", "line 2: not a record, but list",
             "3 documents", "12 skipped")
        assert text.count("skipped: ") == 10 and token_file.check(out)["documents"] == 3
    for more in ((), ("-o", out)):
        text = atoll_data(mixed, *BYTES, "--skip-bad", "--show", 3, *more)
        says(text, f"{mixed}: line 6: ", f"{mixed}: line 14: ", f"skipped: {mixed}: line 2: not a record")
    mixed.write_text("{\n[1]\n")
    text = atoll_data(mixed, *BYTES, "-o", out, "--skip-bad", code=1)
    says(text, f"no record could be read: {mixed}: line 1: {cut}")
    print("broken JSON is named with its line, or skipped and counted")


def check_unused_flags(folder):
    """A flag that the format of the records does not use would be taken for one that was applied."""
    source, out, texts = folder / "a.jsonl", folder / "a.tok", folder / "t.jsonl"
    source.write_text(GOOD)
    texts.write_text('{"body": "x"}\n')
    says(atoll_data(source, *BYTES, "-o", out, "--field", "output", code=1), "--field output: only records of text",
         "alpaca", "--format text")
    says(atoll_data(source, *BYTES, "-o", out, "--template", TEMPLATE, code=1), f"--template {TEMPLATE}: only messages use it")
    says(atoll_data(texts, *BYTES, "-o", out, "--field", "words", code=1), "no key words", "the keys are body")
    atoll_data(texts, *BYTES, "-o", out, "--field", "body")
    says(atoll_data(texts, *BYTES, "-o", out, "--field", "", code=2), "--field: the value is empty")
    print("flags that the records do not use are refused")


def check_drafts(folder):
    """A conversion that ends early leaves nothing, and the next one removes what a killed one has left."""
    source, out = folder / "a.jsonl", folder / "a.tok"
    source.write_text(GOOD * 60000)
    command = [sys.executable, TOOL, str(source), *BYTES, "-o", str(out), "--processes", "2"]
    # With the longer delays, the signal comes while processes start, convert or wait for one another.
    ends = [(signal.SIGTERM, 0, delay) for delay in (0, 0.01, 0.02, 0.05, 0.2)]
    for number, left, delay in (*ends, (signal.SIGINT, 0, 0.02), (signal.SIGHUP, 0, 0), (signal.SIGKILL, 1, 0)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until = time.monotonic() + 30
        while not list(folder.glob("a.tok.*.tmp")) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(delay)
        os.kill(process.pid, number)
        errors = process.communicate(timeout=30)[1].decode()
        assert process.returncode == (-number if left else 128 + number), (process.returncode, errors)
        assert left or "Traceback" not in errors, errors
        assert len(list(folder.glob("a.tok.*.tmp"))) == left, list(folder.iterdir())
    source.write_text(GOOD)
    atoll_data(source, *BYTES, "-o", out)
    assert not list(folder.glob("a.tok.*.tmp")) and token_file.check(out)["documents"] == 1
    ended = subprocess.Popen(["true"])
    ended.wait()
    here, lives = token_file.place_tag(), os.getpid()
    # A process id of another host says nothing here, so such a draft stays until it is an hour old.
    for tag, minutes, stays in ((f"{here}{ended.pid}", 0, False), (f"{here}{lives}", 61, True),
                                (f"01234567-89-{ended.pid}", 59, True), (f"01234567-89-{lives}", 61, False),
                                (ended.pid, 59, True), ("notes", 61, True)):
        draft = folder / f"a.tok.{tag}.tmp"
        draft.touch()
        os.utime(draft, (time.time() - minutes * 60,) * 2)
        atoll_data(source, *BYTES, "-o", out)
        assert draft.exists() == stays, draft
    with mock.patch.object(token_file, "place_tag", lambda: ""):
        assert not token_file.is_abandoned(folder / f"a.tok.{ended.pid}.tmp", str(ended.pid))
    print("conversions that end early leave nothing behind")


if __name__ == "__main__":
    for check in (check_unused_flags, check_drafts, check_outputs, check_flags, check_tokens, check_damage, check_chats,
                  check_json):
        with tempfile.TemporaryDirectory() as name:
            check(Path(name))
