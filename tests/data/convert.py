#!/usr/bin/env python3
"""atoll-data: every input and format, several processes, whole files only, one line for each error."""
import contextlib
import gzip
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from python import HERE, SOURCE, atoll_data, has

from atoll_data import built_in, token_file

ALPACA = [{"instruction": f"Say {i}", "input": "" if i % 2 else "please", "output": f"{i} é🐚"}
          for i in range(300)]
CHAT = [{"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]}
        for i in range(50)]
TEXT = ["one\ntwo", "three", " four \nfive"]


def read(path):
    """Documents and masks of a token file, read from the description of the format."""
    data = path.read_bytes()
    field = lambda at, size: int.from_bytes(data[at:at + size], "little")
    flags, width, documents, tokens = field(12, 4), field(16, 4), field(32, 8), field(40, 8)
    ids = [field(256 + i * width, width) for i in range(tokens)]
    at = 256 + (tokens * width + 7) // 8 * 8
    ends = [field(at + 8 * d, 8) for d in range(documents + 1)]
    at += 8 * (documents + 1)
    bits = [field(at + t // 64 * 8, 8) >> t % 64 & 1 if flags & 1 else 1 for t in range(tokens)]
    spans = list(zip(ends, ends[1:]))
    return [ids[a:b] for a, b in spans], [bits[a:b] for a, b in spans]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def text_of(ids):
    return bytes(id for id in ids if id < 256).decode()


def check_inputs(folder):
    """The same records give the same file, whatever holds them and however many processes convert."""
    out = folder / "out.tok"
    lines = write_lines(folder / "a.jsonl", ALPACA)
    listed = folder / "a.json"
    listed.write_text(json.dumps(ALPACA))
    packed = folder / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    inputs = [lines, listed, packed]
    if has("pyarrow"):
        import pyarrow
        import pyarrow.parquet
        table = pyarrow.Table.from_pylist(ALPACA)
        pyarrow.parquet.write_table(table, folder / "a.parquet")
        for name, maker in (("file.arrow", pyarrow.ipc.new_file), ("stream.arrow", pyarrow.ipc.new_stream)):
            with maker(str(folder / name), table.schema) as writer:
                writer.write_table(table, max_chunksize=100)
            inputs.append(folder / name)
        inputs.append(folder / "a.parquet")
    expected = None
    for source in inputs:
        for processes in (1, 3):
            atoll_data(source, "--tokenizer", "bytes", "-o", out, "--processes", processes)
            expected = expected or out.read_bytes()
            assert out.read_bytes() == expected, source
    documents, masks = read(out)
    assert len(documents) == 300
    assert text_of(documents[1]) == "### Instruction:\nSay 1\n\n### Response:\n1 é🐚"
    trained = [id for id, bit in zip(documents[0], masks[0]) if bit]
    assert documents[0][0] == 256 and trained[-1] == 257 and text_of(trained) == "0 é🐚"
    figures = token_file.check(out)
    assert figures["trained"] == sum(map(sum, masks)) and figures["documents"] == 300
    atoll_data(lines, listed, "--tokenizer", "bytes", "-o", out, "--train-on", "all", "--samples", 450)
    documents, masks = read(out)
    assert len(documents) == 450 and all(all(mask) for mask in masks)
    print(f"{len(inputs)} kinds of files give the same token file")


def check_formats(folder):
    out = folder / "out.tok"
    pairs = write_lines(folder / "pairs.jsonl", [{"prompt": "a", "completion": " b"}])
    atoll_data(pairs, "--tokenizer", "bytes", "-o", out)
    assert read(out) == ([[256, 97, 32, 98, 257]], [[0, 0, 1, 1, 1]])
    text = folder / "t.txt"
    text.write_text("\n\n".join(TEXT) + "\n\n\n")
    atoll_data(text, "--tokenizer", "bytes", "-o", out)
    assert [text_of(document) for document in read(out)[0]] == TEXT
    assert token_file.check(out)["joined"]
    expected = out.read_bytes()
    text.rename(folder / "t.data")
    atoll_data(folder / "t.data", "--tokenizer", "bytes", "--ending", "text", "-o", out)
    assert out.read_bytes() == expected
    other = write_lines(folder / "o.jsonl", [{"body": text} for text in TEXT])
    atoll_data(other, "--tokenizer", "bytes", "-o", out, "--field", "body")
    assert [text_of(document) for document in read(out)[0]] == TEXT
    print("completions and text are converted")
    if not has("jinja2"):
        return
    chat = write_lines(folder / "chat.jsonl", CHAT)
    template = HERE / "templates" / "mistral.jinja"
    atoll_data(chat, "--tokenizer", "bytes", "--template", template, "-o", out, "--processes", 2)
    documents, masks = read(out)
    assert text_of(documents[7]) == "[INST] q7 [/INST] a7"
    assert (documents[7][0], documents[7][-1]) == (256, 257)
    assert text_of(id for id, bit in zip(documents[7], masks[7]) if bit) == " a7"
    for flags, reasons in (((), ("--template mistral, whose special tokens it has",)),
                           (("--template", "chatml"), ("no special token <|im_start|> or <|im_end|>", "use --template mistral,")),
                           (("--template", "chatlm"), ("a FILE, chatml or mistral",))):
        told = atoll_data(chat, "--tokenizer", "bytes", *flags, "-o", out, code=1)
        assert all(reason in told for reason in reasons), told
    lists = write_lines(folder / "l.jsonl", [{"prompt": CHAT[0]["messages"] + CHAT[1]["messages"][:1],
                                              "completion": CHAT[1]["messages"][1:]}])
    atoll_data(lists, "--tokenizer", "bytes", "--template", template, "-o", out)
    documents, masks = read(out)
    assert text_of(id for id, bit in zip(documents[0], masks[0]) if bit) == " a1"
    # If the template marks the answers, only marks in the completion are trained, also if the template writes the
    # prompt in another way when messages follow it.
    marked = folder / "marked.jinja"
    turns = ("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}A{{ m.content }};"
             "{% endgeneration %}{% else %}U{{ m.content }};{% endif %}{% endfor %}")
    for begin in ("", "{{ messages | length }}:"):
        marked.write_text(begin + turns)
        atoll_data(lists, "--tokenizer", "bytes", "--template", marked, "-o", out)
        documents, masks = read(out)
        text = text_of(documents[0])
        assert text == ("4:" if begin else "") + "Uq0;Aa0;Uq1;Aa1;", text
        trained = text_of(id for id, bit in zip(documents[0], masks[0]) if bit)
        assert trained == "Aa1;", f"{begin!r}: {trained!r} is trained"
    shown = atoll_data(chat, "--tokenizer", "bytes", "--template", template, "--show", 2)
    assert 'prompt  "<s>[INST] q1 [/INST]"' in shown and 'trained " a1</s>"' in shown, shown
    print("chats are rendered and masked")


def check_sentencepiece(folder):
    """Control symbols of a chat become their ids, and pieces keep the text."""
    if not has("sentencepiece", "jinja2"):
        return
    chat = write_lines(folder / "chat.jsonl", CHAT)
    out = folder / "out.tok"
    model = SOURCE / "tests" / "train" / "tokenizer.model"
    atoll_data(chat, "--tokenizer", model, "--template", HERE / "templates" / "mistral.jinja", "-o", out)
    import sentencepiece
    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    documents, masks = read(out)
    assert documents[3][0] == library.bos_id() and documents[3][-1] == library.eos_id()
    assert documents[3][1:-1] == library.encode("[INST] q3 [/INST] a3")
    trained = [id for id, bit in zip(documents[3], masks[3]) if bit]
    assert library.decode(trained[:-1]).strip() == "a3" and trained[-1] == library.eos_id()
    # With `legacy` false, SentencePiece adds its space only where a text begins, not after a control symbol.
    (folder / "model").mkdir()
    (folder / "model" / "tokenizer.model").write_bytes(model.read_bytes())
    for legacy in (True, False):
        (folder / "model" / "tokenizer_config.json").write_text(json.dumps({"legacy": legacy}))
        atoll_data(chat, "--tokenizer", folder / "model", "--template", HERE / "templates" / "mistral.jinja", "-o", out)
        ids, mask = (found[3] for found in read(out))
        part = library.encode("[INST] q3 [/INST] a3")
        assert library.id_to_piece(part[0]) == "\u2581" and ids[1:-1] == part[0 if legacy else 1:], (legacy, ids)
        assert [id for id, bit in zip(ids, mask) if bit] == trained, (legacy, mask)
    check_mistral(folder, library)
    check_plain_end(folder, model, library)
    print("SentencePiece models encode chats")


def check_mistral(folder, library):
    """The template mistral: the ids of Mistral's own library, with and without `legacy`; roles take turns."""
    say = lambda role, text: {"role": role, "content": text}
    turns = [say("system", "Be brief."), say("user", "q"), say("assistant", " a "), say("user", "r"), say("assistant", "b")]
    chat, out = write_lines(folder / "turns.jsonl", [{"messages": turns}]), folder / "out.tok"
    bos, eos = [library.bos_id()], [library.eos_id()]
    expected = (bos + library.encode("[INST] Be brief.\n\nq [/INST] a") + eos + library.encode("[INST] r [/INST] b") + eos)
    for legacy in (True, False):
        (folder / "model" / "tokenizer_config.json").write_text(json.dumps({"legacy": legacy}))
        atoll_data(chat, "--tokenizer", folder / "model", "--template", "mistral", "-o", out)
        (ids,), (mask,) = read(out)
        assert ids == expected, (legacy, ids)
        answers = [id for id, bit in zip(ids, mask) if bit]
        assert answers == library.encode("a") + eos + library.encode("b") + eos, answers
    write_lines(chat, [{"messages": turns[:2] + turns[1:]}])
    told = atoll_data(chat, "--tokenizer", folder / "model", "--template", "mistral", "-o", out, code=1)
    assert "user and assistant must take turns, but message 3 is of user" in told, told


def check_plain_end(folder, model, library):
    """A template whose end of an answer is no special token: the whole answer is trained, and one line warns."""
    answers = ["Ahoy. Over and out.", "b", "x y<", "x", "<|im_end|>", "é🐚"]
    chat = write_lines(folder / "ends.jsonl", [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]} for answer in answers])
    out, template = folder / "out.tok", folder / "plain.jinja"
    template.write_text(built_in.CHATML)
    flags = [chat, "--tokenizer", model, "--template", template, "--processes", 1, "-o", out]
    told = atoll_data(*flags)
    assert told.count("warning") == 1 and "'<|im_end|>' follows them, which is no special token" in told, told
    for answer, ids, mask in zip(answers, *read(out)):
        trained = library.decode([id for id, bit in zip(ids, mask) if bit])
        assert trained.strip().startswith(answer) and len(trained.strip()) <= len(answer) + 2, (answer, trained)
    assert "warning" not in atoll_data(*flags, "--train-on", "all")


def check_tokenizer_json(folder):
    """A tokenizer.json of a folder, or of a model in the Hub's local cache."""
    if not has("tokenizers", "jinja2"):
        return
    import tokenizers
    from atoll_data import encoding
    alphabet = {char: id for id, char in enumerate(sorted(encoding.BYTE_LEVEL))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=alphabet | {"ab": 256}, merges=[("a", "b")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    model = folder / "hub" / "models--org--name" / "snapshots" / "abc"
    model.mkdir(parents=True)
    (folder / "hub" / "models--org--name" / "refs").mkdir()
    (folder / "hub" / "models--org--name" / "refs" / "main").write_text("abc\n")
    made.save(str(model / "tokenizer.json"))
    pairs = write_lines(folder / "pairs.jsonl", [{"prompt": "x ab", "completion": "b\n"}])
    out, cache = folder / "out.tok", {"HF_HUB_CACHE": str(folder / "hub")}
    text = atoll_data(pairs, "--tokenizer", "org/name", "-o", out, code=1, env=cache)
    assert "names no token that ends a text: add --eos" in text
    (model / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": None, "eos_token": {"content": "</s>"}, "chat_template": "{{ messages }}"}))
    atoll_data(pairs, "--tokenizer", "org/name", "-o", out, env=cache)
    documents, masks = read(out)
    assert documents[0][-1] == 257 and 256 in documents[0] and masks[0] == [0, 0, 0, 1, 1, 1]
    expected = out.read_bytes()
    atoll_data(pairs, "--tokenizer", model, "-o", out)
    assert out.read_bytes() == expected
    # atoll-data looks for the cache where atoll-train does, and a revision may be a reference or a commit.
    (folder / "xdg").mkdir()
    (folder / "xdg" / "huggingface").symlink_to(folder)
    home = {"HF_HUB_CACHE": "", "HF_HOME": "", "XDG_CACHE_HOME": str(folder / "xdg")}
    (folder / "hub" / "models--org--name" / "refs" / "v1.0").write_text("abc")
    for name, where in (("org/name", home), ("org/name", home | {"HF_HOME": str(folder)}),
                        ("org/name@v1.0", home), ("org/name@abc", home), ("org/name@main", cache)):
        out.unlink()
        atoll_data(pairs, "--tokenizer", name, "-o", out, env=where)
        assert out.read_bytes() == expected, name
    for name, words in (("org/name@v2", "org/name --revision v2"), ("org/other", "org/other`")):
        text = atoll_data(pairs, "--tokenizer", name, "-o", out, code=1, env=home)
        assert f"does not exist: download it with `hf download {words}" in text, text
    for name in ("org/name@", "org/.name", "org/name/more", "org/name@a/b"):
        text = atoll_data(pairs, "--tokenizer", name, "-o", out, code=1, env=home)
        assert f"--tokenizer {name}: use bytes" in text, text
    check_built_in(folder, made)
    (folder / "half.jsonl").write_text(json.dumps({"prompt": "a", "completion": "\ud800"}))
    text = atoll_data(folder / "half.jsonl", "--tokenizer", model, "-o", out, code=1)
    assert "line 1: \\ud800 is half" in text, text
    (model / "tokenizer.json").write_text("{}")
    assert "not a tokenizer.json" in atoll_data(pairs, "--tokenizer", model, "-o", out, code=1)
    print("tokenizer.json is found in a folder and in the Hub's cache")


def check_built_in(folder, made):
    """A template that is built in fits the special tokens of the tokenizer."""
    chat, out, model = write_lines(folder / "chat.jsonl", CHAT[:1]), folder / "out.tok", folder / "special"
    model.mkdir()
    made = made.from_str(made.to_str())
    made.add_special_tokens(["[INST]", "[/INST]"])
    made.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    flags = (chat, "--tokenizer", model, "-o", out, "--template")
    told = atoll_data(*flags, "chatml", code=1)
    assert "no special token <|im_start|> or <|im_end|>" in told and "use --template mistral," in told, told
    shown = atoll_data(*flags, "mistral", "--show", 1)
    assert 'prompt  "[INST]q0[/INST]"' in shown and 'trained "a0</s>"' in shown, shown
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").unlink()
    assert "use --template chatml," in atoll_data(*flags, "mistral", code=1)
    shown = atoll_data(*flags, "chatml", "--show", 1)
    assert 'trained "a0<|im_end|>"' in shown, shown


def check_errors(folder):
    out = folder / "error.tok"
    options = ("--tokenizer", "bytes", "-o", out, "--processes", 2)

    def refused(name, content, *reasons, more=()):
        file = folder / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        text = atoll_data(file, *options, *more, code=1)
        for reason in reasons:
            assert reason in text, f"{reason!r} is not in {text!r}"

    good = json.dumps(ALPACA[0]) + "\n"
    refused("a.jsonl", good + '{"instruction": "x"}\n', "line 2: no `output`")
    refused("a.jsonl", good + '{"instruction": 1, "output": "x"}\n', "`instruction` is not a string")
    refused("a.jsonl", "[1]\n", "line 1: not a record, but list; if the file is one list", "the ending .json")
    refused("a.pdf", "%PDF-1.7", "a.pdf: a .pdf file; write its text to a .txt file first")
    assert f"{folder}: a folder; name the files in it" in atoll_data(folder, *options, code=1)
    refused("a.jsonl", '{"x": 1}\n', "the keys x fit no format", "--field")
    refused("a.json", "3", "not a list of records, but int")
    refused("a.xyz", "", "unknown ending")
    refused("a.jsonl.gz", b"no gzip", "a.jsonl.gz: ")
    refused("c.jsonl", json.dumps(CHAT[0]) + "\n", "--template FILE")
    atoll_data(folder / "none.jsonl", *options, code=1)
    # One message names all flags that are misspelled or that belong to other programs.
    text = atoll_data(folder / "a.jsonl", *options, "--chat-template", "x", "--proceses", "2", "--max_samples=3", code=2)
    for hint in ("--chat-template (use --template)", "--proceses (use --processes)", "--max_samples=3 (use --samples)"):
        assert hint in text, f"{hint!r} is not in {text!r}"
    # Half of a surrogate pair is valid JSON, but no text.
    half = json.dumps({"instruction": "x", "output": "a\udfff"}) + "\n"
    for text in (good + half, good * 200 + half):
        refused("h.jsonl", text, f"h.jsonl: line {text.count(chr(10))}: \\udfff is half of a surrogate pair")
    refused("h.json", "[" + half + "]", "h.json: record 1: \\udfff")
    refused("h.jsonl", half, "line 1: \\udfff", more=("--show", 1))
    refused("t.jsonl", '{"text": "\\ud83d"}', "t.jsonl: line 1: \\ud83d")
    if has("jinja2"):
        refused("c.jsonl", json.dumps({"messages": [{"role": "user", "content": "\ud800"}]}),
                "c.jsonl: line 1: \\ud800", more=("--template", HERE / "templates" / "qwen25.jinja"))
    lines = write_lines(folder / "b.jsonl", ALPACA)
    for what in ("x.model", str(folder)):
        assert f"--tokenizer {what}: " in atoll_data(lines, "--tokenizer", what, "-o", out, code=1)
    assert "No such file" in atoll_data(lines, "--tokenizer", "bytes", "-o", folder / "no" / "x.tok",
                                        code=1)
    if has("jinja2"):
        bad = folder / "bad.jinja"
        bad.write_text("{% for %}")
        refused("c.jsonl", json.dumps(CHAT[0]), "not a chat template", more=("--template", bad))
        bad.write_text("{{ messages.__class__.__mro__ }}")
        refused("c.jsonl", json.dumps(CHAT[0]), "the chat template refuses it", more=("--template", bad))
        bad.write_text("{{ raise_exception('not today') }}")
        refused("c.jsonl", json.dumps(CHAT[0]), "line 1: the chat template refuses it: not today",
                more=("--template", bad))
    # An incomplete file never appears under its final name, and no temporary file is left.
    left = [file.name for file in folder.iterdir() if "error.tok" in file.name]
    assert not left, left
    mixed = folder / "mixed.jsonl"
    mixed.write_text(good + '{"instruction": "x"}\n' + half + good)
    text = atoll_data(mixed, *options, "--skip-bad")
    assert "skipped: " in text and "line 3: \\udfff" in text and "2 skipped" in text, text
    assert token_file.check(out)["documents"] == 2
    data = bytearray(out.read_bytes())
    data[300] ^= 1
    out.write_bytes(data)
    assert "fingerprint" in atoll_data("--check", out, code=1)
    out.write_bytes(data[:-8])
    atoll_data("--check", out, code=1)
    print("errors have one line and leave no file")


def check_missing(folder):
    """A missing package is one line with the command that installs it."""
    (folder / "a.parquet").write_bytes(b"PAR1")
    write_lines(folder / "a.jsonl", ALPACA)
    write_lines(folder / "c.jsonl", CHAT)
    absent = folder / "absent"
    absent.mkdir()
    for name in ("pyarrow", "tokenizers", "sentencepiece", "jinja2"):
        (absent / f"{name}.py").write_text("raise ImportError('absent')\n")
    (folder / "tokenizer.json").write_text("{}")
    template = HERE / "templates" / "mistral.jinja"
    for name, arguments in (
            ("pyarrow", (folder / "a.parquet", "--tokenizer", "bytes")),
            ("tokenizers", (folder / "a.jsonl", "--tokenizer", folder / "tokenizer.json")),
            ("sentencepiece", (folder / "a.jsonl", "--tokenizer",
                               SOURCE / "tests" / "train" / "tokenizer.model")),
            ("jinja2", (folder / "c.jsonl", "--tokenizer", "bytes", "--template", template))):
        text = atoll_data(*arguments, "-o", folder / "x.tok", code=1, env={"PYTHONPATH": str(absent)})
        assert f"needs the Python package {name}: pip install {name}" in text, text
    model = SOURCE / "tests" / "train" / "tokenizer.model"
    text = atoll_data(folder / "c.jsonl", "--tokenizer", model, "--show", 1, code=1, env={"PYTHONPATH": str(absent)})
    assert ("tokenizer.model: a SentencePiece model and a chat template need the Python packages sentencepiece and jinja2: "
            "pip install sentencepiece jinja2, or apt install python3-sentencepiece python3-jinja2\n") in text, text
    text = atoll_data(folder / "a.parquet", "--tokenizer", model, "--format", "chat", "--show", 1, code=1,
                      env={"PYTHONPATH": str(absent)})
    assert "pip install pyarrow sentencepiece jinja2\n" in text, text
    print("missing packages are named with the pip command")


def check_progress(folder):
    """Slow records: a terminal and a log show which part of the bytes was read, and --quiet shows nothing."""
    lines = write_lines(folder / "a.jsonl", ALPACA)
    slow = ("import sys, time; from atoll_data import cli, records; line = records._line; "
            "records._line = lambda *of: (time.sleep(0.01), line(*of))[1]; "
            "cli.Progress.PERIODS = {True: 1, False: 1.5}; sys.exit(cli.main())")
    for processes, terminal, flags in ((1, True, ()), (2, False, ()), (1, True, ("--quiet",))):
        ours, theirs = pty.openpty() if terminal else os.pipe()
        command = [sys.executable, "-B", "-c", slow, lines, "--tokenizer", "bytes", "-o", folder / "x.tok", *flags]
        process = subprocess.Popen([*map(str, command), "--processes", str(processes)], stderr=theirs,
                                   env=dict(os.environ, PYTHONPATH=str(SOURCE / "tools" / "data")))
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # reading fails when the program has closed the terminal
            while part := os.read(ours, 4096):
                text += part
        os.close(ours)
        assert process.wait() == 0, text
        parts = list(map(int, re.findall(r"(\d+) % of 0\.0 MB: ", text.decode())))
        assert flags or len(parts) > 1 - (not terminal) and parts == sorted(parts) and parts[-1] <= 100, text
        assert not terminal or flags or parts[-1] > 0, text
        assert (b"x.tok: 300 documents" in text) == (not flags) and (not flags or text == b""), text
    print("progress tells the part of the bytes")


if __name__ == "__main__":
    for check in (check_inputs, check_formats, check_sentencepiece, check_tokenizer_json, check_errors,
                  check_missing, check_progress):
        with tempfile.TemporaryDirectory() as name:
            check(Path(name))
