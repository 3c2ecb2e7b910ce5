#!/usr/bin/env python3
"""Data that atoll-train does not read itself: rank 0 lets atoll-data convert them, and every rank trains on the file.

  converted.py ATOLL_TRAIN RUN_RANKS [--tokenizer-json]

--tokenizer-json runs the part that needs the Python package tokenizers, and only that."""
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from python import SOURCE, atoll_data, has

TRAIN, RUN_RANKS = (Path(program).resolve() for program in sys.argv[1:3])
ALPACA = SOURCE / "tests" / "train" / "alpaca.json"
TOKENIZER = SOURCE / "tests" / "train" / "tokenizer.model"
FLAGS = ["--steps", "2", "--seq", "96", "--global-batch", "4", "--threads", "1", "--peak-seconds", "0.01", "--warmup-steps", "0",
         "--no-checkpoint", "--quiet"]
# A rank works in its own folder, if there is one, and writes its process id to a file.
AS_RANK = 'cd "rank$ATOLL_RANK" 2>/dev/null; echo $$ >"$FOLDER/pid$ATOLL_RANK"; exec "$@"'
ON_HOST = "export ATOLL_HOST_ID=host$ATOLL_RANK XDG_CACHE_HOME=cache; " + AS_RANK
# A script in place of python3, which makes a conversion take DELAY seconds longer.
SLOW = '#!/bin/sh\necho $$ >"$FOLDER/slow.pid"\nsleep "$DELAY"\nexec %s "$@"\n' % sys.executable


def start(folder, name, *flags, ranks=2, shell=AS_RANK, options=(), **env):
    env = {"XDG_CACHE_HOME": str(folder / "cache"), "FOLDER": str(folder), "ATOLL_LOG": "info"} | env
    path = f"{env.pop('FIRST', Path(sys.executable).parent)}:{os.environ['PATH']}"
    return subprocess.Popen([RUN_RANKS, "-n", str(ranks), "--timeout", "60", *options, "--", "bash", "-c", shell, "rank", TRAIN,
                             *FLAGS, "--out", folder / name, *map(str, flags)], text=True, cwd=folder,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | env | {"PATH": path})


def run(folder, name, *flags, **how):
    """Trains, and returns the losses and the output."""
    job = start(folder, name, *flags, **how)
    output = job.communicate()[0]
    assert job.returncode == 0, f"{name}: {output}"
    lines = (folder / name / "steps.jsonl").read_text().splitlines()
    assert len(lines) == 2, output
    return [json.loads(line)["loss"] for line in lines], output


def refused(output, ranks, *parts):
    """Every rank has one line, apart from the log, with all these parts."""
    for rank in range(ranks):
        lines = [line for line in output.splitlines() if line.startswith(f"[{rank}] ") and " atoll " not in line]
        assert len(lines) == 1, f"rank {rank}: {output}"
        for part in (f"atoll-train: rank {rank}: atoll-data: ", *parts):
            assert part in lines[0], f"{part!r} is not in {lines[0]!r}"


def write_lines(path, records):
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def check_kinds(folder):
    """Every kind of file gives the losses of the trainer's own reader, or of a converted file."""
    records = json.loads(ALPACA.read_text())
    lines = write_lines(folder / "alpaca.jsonl", records)
    own, output = run(folder, "own", "--data", ALPACA)
    assert "converts" not in output, output
    losses, output = run(folder, "lines", "--data", lines)
    assert losses == own and output.count("atoll-data converts it to") == 1 and "alpaca.tok: " in output, output
    for name, data in (("again", lines), ("prefix", f"jsonl:{lines}:2"), ("packed", write_lines(folder / "a.jsonl.gz", records))):
        losses, output = run(folder, name, "--data", data)
        assert losses == own, f"{name}: {losses}"
        assert ("converts" in output) == (name != "again"), output
    write_lines(lines, records[:20])
    losses, output = run(folder, "changed", "--data", lines)
    assert losses != own and "converts" in output, output
    pairs = folder / "pairs.json"
    pairs.write_text(json.dumps([{"prompt": f"{n} and 1", "completion": f" {n + 1}"} for n in range(40)]))
    notes = folder / "notes.data"
    notes.write_text("One reef.\n\nTwo\nreefs.\n" * 60)
    for data, prefix in ((pairs, ""), (notes, "text:")):
        atoll_data(data, "--tokenizer", "bytes", "-o", folder / "by-hand.tok", *(("--ending", "text") if prefix else ()))
        assert run(folder, "kind", "--data", f"{prefix}{data}")[0] == run(folder, "hand", "--data", folder / "by-hand.tok")[0]
    run(folder, "mixed", "--data", f"demo:0.5,{lines}:0.5", "--eval-data", f"text:{notes}")
    assert json.loads((folder / "mixed" / "metrics.json").read_text())["eval_loss"] > 0
    if has("sentencepiece"):
        flags = ("--tokenizer", TOKENIZER, "--data")
        write_lines(lines, records)
        assert run(folder, "pieces", *flags, lines)[0] == run(folder, "own-pieces", *flags, ALPACA)[0]
    print("JSON Lines, gzip, other records, text and mixtures train as converted files do")


def check_hosts(folder):
    """The source is on host 1 only: rank 0 gets it, and all hosts get the token file."""
    for rank in range(3):
        (folder / f"rank{rank}").mkdir()
    write_lines(folder / "rank1" / "a.jsonl", json.loads(ALPACA.read_text()))
    hosts = dict(ranks=3, shell=ON_HOST)
    losses, output = run(folder, "hosts", "--data", "a.jsonl", **hosts)
    assert "rank 1 sends 1 file(s)" in output and ", to 1 host(s)" in output, output
    assert "rank 0 sends 1 file(s)" in output and ", to 2 host(s)" in output, output
    assert losses == run(folder, "own", "--data", ALPACA, **hosts)[0]
    print("other hosts get the token file")


def check_failures(folder):
    good = {"instruction": "Say", "output": "yes"}
    bad = write_lines(folder / "bad.jsonl", [good, {"instruction": "Say"}])
    absent = folder / "absent"
    absent.mkdir()
    for package in ("pyarrow", "tokenizers"):
        (absent / f"{package}.py").write_text("raise ImportError('absent')\n")
    (folder / "web.parquet").write_bytes(b"PAR1")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "utf16.json").write_text("[]", encoding="utf-16")
    (folder / "odd.json").write_text('[{"question": "?"}]')
    for flags, *parts in ((("--data", bad), "bad.jsonl: line 2: no `output`"),
                          (("--data", folder / "none.txt"), "none.txt: no such file"),
                          (("--data", f"{bad}x"), "use demo, synthetic"),
                          (("--data", folder / "utf16.json"), "utf16.json: not UTF-8", "iconv"),
                          (("--data", folder / "odd.json"), "the keys question fit no format"),
                          (("--data", folder / "web.parquet"), "the Python package pyarrow: pip install pyarrow"),
                          (("--data", ALPACA, "--tokenizer", folder / "tokenizer.json"), "pip install tokenizers")):
        job = start(folder, "out", *flags, PYTHONPATH=str(absent))
        output = job.communicate()[0]
        assert job.returncode != 0, output
        if "use demo" in parts[0]:  # found before ranks meet, so only one rank prints it
            assert output.count("use demo, synthetic") == 1, output
        else:
            refused(output, 2, *parts)
    refused(start(folder, "out", "--data", bad, shell='PATH=/nowhere exec "$@"').communicate()[0], 2, "python3")
    for flags in (("--data", bad, "--tokenizer", "ids:300"), ("--data", f"{bad},{folder / 'x.tok'}")):
        output = start(folder, "out", *flags).communicate()[0]
        assert output.count("these data are text: name their tokenizer") == 2, output
    assert not list(folder.glob("cache/**/*.tok"))
    print("each rank tells why the data cannot be converted")


def wait_for(path):
    for _ in range(200):
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.1)
    raise AssertionError(f"no {path}")


def has_ended(pid):
    """Whether a process has ended within 5 s."""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


def check_long(folder):
    """A conversion may take longer than any time limit, and ends with its rank and by a signal."""
    (folder / "slow").mkdir()
    (folder / "slow" / "python3").write_text(SLOW)
    (folder / "slow" / "python3").chmod(0o755)
    lines = write_lines(folder / "a.jsonl", json.loads(ALPACA.read_text()))
    slow = {"FIRST": folder / "slow", "ATOLL_TIMEOUT": "5"}
    assert run(folder, "long", "--data", lines, DELAY="12", **slow)[0] == run(folder, "own", "--data", ALPACA)[0]
    for name, number, rank in (("killed", signal.SIGKILL, 0), ("stopped", signal.SIGTERM, 1)):
        (folder / "slow.pid").unlink()
        lines.write_text(lines.read_text() + "\n")
        options = ("--killed", "0") if number == signal.SIGKILL else ()
        job = start(folder, name, "--data", lines, DELAY="25", options=options, **slow)
        child = wait_for(folder / "slow.pid")
        os.kill(wait_for(folder / f"pid{rank}"), number)
        begin, output = time.monotonic(), job.communicate()[0]
        assert time.monotonic() - begin < 20 and has_ended(child), f"{name}: {output}"
        if name == "stopped":
            assert output.count("stopped by a signal while atoll-data converted the data") == 2, output
    print("a long conversion passes no time limit, and ends with its rank")


def check_tokenizer_json(folder):
    """A model whose tokenizer only atoll-data reads."""
    import tokenizers
    words = {word: id for id, word in enumerate(["<unk>", "</s>", *map(str, range(60)), "and"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["</s>"])
    model = folder / "model"
    model.mkdir()
    made.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (model / "config.json").write_text(json.dumps({
        "model_type": "mistral", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 96, "sliding_window": None}))
    pairs = write_lines(folder / "pairs.jsonl", [{"prompt": f"{n} and 1", "completion": f" {n + 1}"} for n in range(40)])
    flags = ("--model", model, "--init", "none")
    losses, output = run(folder, "json", *flags, "--data", pairs, "--export", folder / "exported")
    assert "converts" in output and (folder / "exported" / "tokenizer.json").exists(), output
    atoll_data(pairs, "--tokenizer", model, "-o", folder / "pairs.tok")
    for tokens in ((), ("--tokenizer", model), ("--tokenizer", model / "tokenizer.json")):
        assert run(folder, "tok", *flags, "--data", folder / "pairs.tok", *tokens)[0] == losses
    (model / "tokenizer.json").write_text(made.to_str().replace("and", "plus"))
    output = start(folder, "other", *flags, "--data", folder / "pairs.tok", "--tokenizer", model).communicate()[0]
    assert output.count("was made with another tokenizer than --tokenizer") == 2, output
    print("a tokenizer.json is that of the converted data")


if __name__ == "__main__":
    checks = [check_kinds, check_hosts, check_failures, check_long]
    if sys.argv[3:] == ["--tokenizer-json"]:
        if not has("tokenizers"):
            sys.exit(77)
        checks = [check_tokenizer_json]
    for check in checks:
        with tempfile.TemporaryDirectory() as name:
            check(Path(name))
