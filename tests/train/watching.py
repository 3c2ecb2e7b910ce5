#!/usr/bin/env python3
"""What people watch a run with: gates and their exit codes, Prometheus, report, compare.

  watching.py ATOLL_TRAIN [ATOLL_WATCH]

With ATOLL_WATCH it checks only the event file that this makes of a run, with TensorBoard's own reader,
and exits with 77 if Python lacks it. ATOLL_TEST_PYTHON names another Python."""
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

wanted = os.environ.pop("ATOLL_TEST_PYTHON", None)
if wanted:
    os.execv(wanted, [wanted, *sys.argv])

TRAIN = Path(sys.argv[1]).resolve()
STEPS = 6


def command(out, *flags, peak_seconds="0.01"):
    return [TRAIN, "--model", "mistral-tiny", "--seq", "64", "--global-batch", "4", "--steps", str(STEPS),
            "--samples", "40", "--no-checkpoint", "--threads", "1", "--peak-seconds", peak_seconds, "--quiet",
            "--out", str(out), *map(str, flags)]


def run(arguments, code=0, env=None):
    done = subprocess.run(arguments, capture_output=True, text=True, env=dict(os.environ, **(env or {})))
    text = done.stdout + done.stderr
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}, not {code}\n{text}"
    return text


def check_gates(folder):
    # A busy machine makes a short measurement of the peak too low, and the MFU then exceeds 100 %.
    text = run(command(folder / "slow", "--min-mfu", "1", peak_seconds="0.2"), code=3)
    assert "atoll-train: --min-mfu: MFU was " in text and "limit of 100.00 %" in text, text
    assert (folder / "slow" / "metrics.json").exists()
    text = run(command(folder / "large", "--max-memory", "1M"), code=4)
    assert "atoll-train: --max-memory: a rank used " in text and "limit of 1.0 MiB" in text, text
    run(command(folder / "fine", "--min-mfu", "0.0001", "--max-memory", "100G"))
    text = run(command(folder / "none", "--min-mfu", "0.1", "--untimed-steps", STEPS), code=3)
    assert "MFU is unknown" in text and "--untimed-steps" in text, text
    assert "--min-mfu" in run(command(folder / "wrong", "--min-mfu", "40"), code=2)
    print("gates: exit codes 3 and 4, and the limits are named")


def check_evaluation(folder):
    """The same loss as an evaluation in a run, and no files."""
    flags = ["mistral-tiny", "--seq", "64", "--data", "synthetic", "--samples", "8", "--threads", "1"]
    before = set(Path.cwd().iterdir())
    text = run([TRAIN, "evaluate", *flags])
    loss, perplexity = map(float, re.search(r"^mistral-tiny[^:]*: loss ([0-9.]+), perplexity ([0-9.e+]+) on 8 samples of "
                                            r"synthetic$", text, re.M).groups())
    assert abs(math.log(perplexity) - loss) < 1e-2 and set(Path.cwd().iterdir()) == before, text
    run([TRAIN, "--model", *flags, "--eval-data", "synthetic", "--eval-samples", "8", "--global-batch", "4", "--epochs", "0.5",
         "--lr", "0", "--peak-seconds", "0.01", "--quiet", "--out", folder / "epochs"])
    records = [json.loads(line) for line in open(folder / "epochs" / "steps.jsonl")]
    assert len(records) == 1 and abs(records[0]["eval_loss"] - loss) < 2e-4, records
    # A checkpoint is evaluated on any data, and with any other flags of training.
    again = run([TRAIN, "evaluate", *flags, "--resume", folder / "epochs" / "checkpoint"])
    assert f"loss {loss:.4f}," in again, again
    # A checkpoint or the folder of its run is evaluated with the flags of the run.
    for place in ("epochs", "epochs/checkpoint/", "epochs/checkpoints/step-00000001"):
        assert re.search(rf"^mistral-tiny[^:]*: loss {loss:.4f}, .* on 8 samples", run([TRAIN, "evaluate", folder / place]), re.M)
    other = run([TRAIN, "evaluate", "mistral-tiny", "--data", "demo", "--resume", folder / "epochs" / "checkpoint", "--seed", "5"])
    assert "of demo" in other, other
    assert "name a model" in run([TRAIN, "evaluate", "--data", "demo"], code=2)
    assert run([TRAIN, "evaluate", "--model", folder / "epochs"]) == run([TRAIN, "evaluate", folder / "epochs"])
    assert "this run has no such checkpoint: use " in run([TRAIN, "evaluate", folder / "epochs" / "nothing"], code=2)
    # Limits that a run had for its data do not count for another file, and no message names its flags.
    text = run([TRAIN, "evaluate", folder / "epochs", "--data", "demo"])
    assert re.search(r"^mistral-tiny[^:]*: loss .* on 131 samples of demo$", text, re.M) and "--" not in text, text
    # A start without steps to do keeps the records of those that were done.
    train = [TRAIN, "--model", *flags, "--global-batch", "4", "--lr", "0", "--peak-seconds", "0.01", "--quiet", "--out", folder / "epochs"]
    run([*train, "--epochs", "1", "--resume", "auto"])
    run([*train, "--epochs", "0.5", "--resume", folder / "epochs" / "checkpoints" / "step-00000001"])
    assert len(list(open(folder / "epochs" / "steps.jsonl"))) == 2
    missing = run([TRAIN, "evaluate", *flags, "--resume", "auto", "--out", folder / "nothing"], code=1)
    assert "--evaluate: --resume auto found no checkpoint in " in missing, missing
    assert "no-such-model" in run([TRAIN, "evaluate", "no-such-model", "--data", "demo"], code=1)
    # A signal ends an evaluation at once: there is nothing to save.
    long = subprocess.Popen([TRAIN, "evaluate", "mistral-mini", "--data", "demo", "--threads", "1"], stderr=subprocess.DEVNULL)
    time.sleep(2)
    long.terminate()
    assert long.wait(timeout=10) == -signal.SIGTERM
    print("evaluate: loss and perplexity of weights and of a checkpoint, without files")


def check_export(folder):
    """A run's model is written without a run, and is the same; a run starts from it or from the run."""
    text = run([TRAIN, "export", folder / "epochs", folder / "model"])
    assert f"exporting {folder / 'epochs' / 'checkpoint'} after step " in text and f"model in {folder / 'model'}" in text, text
    assert "memory" not in text and "warning" not in text and not (Path.cwd() / "results").exists(), text
    evaluated = [run([TRAIN, "evaluate", place, "--data", "demo", "--seq", "64"]) for place in
                 (folder / "model", folder / "epochs" / "checkpoint")]
    losses = {re.search(r"loss ([0-9.]+), ", text)[1] for text in evaluated}
    assert len(losses) == 1, losses
    run([TRAIN, "export", folder / "nothing", folder / "model2"], code=1)
    assert "the folder of a run: name a new folder" in run([TRAIN, "export", folder / "epochs", folder / "epochs"], code=2)
    start = command(folder / "again", "--data", "demo", "--init", folder / "epochs")
    assert f"weights of {folder / 'epochs'}" in run(start)
    print("export: the model of a run")


def check_messages(folder):
    text = run([TRAIN, "compare", folder / "fine", "--html", folder / "nowhere" / "x.html"], code=1)
    last = text.strip().splitlines()[-1]
    assert last == f"atoll-train: {folder / 'nowhere' / 'x.html'}: No such file or directory", text


def data_of(page):
    """The data that a page draws."""
    return json.loads(re.search('id="report">(.*?)</script>', page.read_text())[1])


def check_report(folder):
    report = data_of(folder / "fine" / "report.html")
    assert report["kind"] == "run" and len(report["curves"]["loss"]["y"]) == STEPS, report
    assert report["plan"]["memory"]["optimizer"] > 0 and "cpu_machine" in report["curves"], report
    (folder / "fine" / "report.html").unlink()
    assert run([TRAIN, "report", folder / "fine"]).strip().endswith("report.html")
    assert (folder / "fine" / "report.html").exists()
    assert "has no steps.jsonl" in run([TRAIN, "report", folder], code=1)
    run(command(folder / "other", "--lr", "0.0005"))
    text = run([TRAIN, "compare", folder / "fine", folder / "other", "--html", folder / "compare.html"])
    assert "tokens per second" in text and "\n  lr " in text and "* best of the runs" in text, text
    assert text.endswith(f"curves in {folder / 'compare.html'}\n"), text
    names = [one["name"] for one in data_of(folder / "compare.html")["runs"]]
    assert names == ["fine", "other"], names
    both = run([TRAIN, "compare", folder])  # a folder of runs
    assert re.match(r"\s+.*\bfine\b.*\bother\b", both), both
    assert "*" not in run([TRAIN, "compare", folder / "fine"])
    # A folder in the way of report.html is a warning, not a failure.
    (folder / "blocked" / "report.html" / "x").mkdir(parents=True)
    assert "no report.html" in run(command(folder / "blocked"))
    for name in ("metrics.json", "steps.jsonl"):
        lines = (folder / "fine" / name).read_text().splitlines()
        figures = json.loads(lines[-1] if name == "steps.jsonl" else "\n".join(lines))
        for key in ("cpu_machine", "cpu_ranks", "memory_used_fraction", "network_sent_per_s"):
            assert figures[key] >= 0, (name, key)
    print("report and compare: pages and table")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_prometheus(folder):
    port = free_port()
    arguments = command(folder / "served", "--metrics-port", port)
    arguments[arguments.index("--steps") + 1] = "100000"
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    try:
        told = []
        thread = threading.Thread(target=lambda: told.extend(process.stderr), daemon=True)
        thread.start()
        text = ""
        for _ in range(300):
            if process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:
                pass
            if "training_mfu{" in text:
                break
            time.sleep(0.1)
        if process.poll() == 1:
            thread.join()
            assert "prometheus-cpp-dev" in told[-1], told
            print("prometheus: not built in")
            return
        for figure in ("training_mfu", "training_loss", "training_tokens_per_second", "training_step"):
            assert f"\n{figure}{{" in text, f"{figure} is not served:\n{text}"
        # An evaluation that has not been made is absent, so no alert can compare it.
        assert 'model="mistral-tiny"' in text and "training_eval_loss" not in text, text
        # Idle clients, more than the endpoint has threads, must not block it.
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=15) as answer:
            assert "training_mfu{" in answer.read().decode()
        for client in idle:
            client.close()
        taken = run(command(folder / "taken", "--metrics-port", port), code=1)
        assert f"--metrics-port: cannot listen at 127.0.0.1:{port}" in taken, taken
        print("prometheus: figures of a run in progress")
    finally:
        process.kill()
        process.wait()


def check_tensorboard(folder):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("skipped: no Python package tensorboard (pip install tensorboard, or set ATOLL_TEST_PYTHON)")
        sys.exit(77)
    run(command(folder / "run", "--eval-split", "0.2", "--eval-every", 3))
    for _ in range(2):  # the second time replaces the first
        text = run([sys.executable, sys.argv[2], folder / "run", "--to", "tensorboard"])
        assert f"look at them with: tensorboard --logdir {folder}/run/tensorboard\n" in text, text
    events = EventAccumulator(str(folder / "run" / "tensorboard"))
    events.Reload()
    steps = [json.loads(line) for line in (folder / "run" / "steps.jsonl").read_text().splitlines()]
    for tag, key in (("train/loss", "loss"), ("train/learning_rate", "learning_rate"),
                     ("train/grad_norm", "grad_norm"), ("speed/tokens_per_s", "tokens_per_s"),
                     ("speed/mfu", "mfu"), ("eval/loss", "eval_loss")):
        expected = [(step["step"], step[key]) for step in steps if step[key] is not None]
        got = [(event.step, event.value) for event in events.Scalars(tag)]
        assert len(got) == len(expected) > 0, (tag, got, expected)
        for (at, value), (step, other) in zip(got, expected):
            assert at == step and abs(value - other) <= 1e-6 * abs(other), (tag, at, value, other)
    first, last = events.Scalars("train/loss")[0], events.Scalars("train/loss")[-1]
    assert time.time() - 600 < first.wall_time <= last.wall_time <= time.time() + 1
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
    print(f"tensorboard: reads {', '.join(events.Tags()['scalars'])}")


with tempfile.TemporaryDirectory() as name:
    if len(sys.argv) > 2:
        check_tensorboard(Path(name))
    else:
        check_gates(Path(name))
        check_evaluation(Path(name))
        check_export(Path(name))
        check_messages(Path(name))
        check_report(Path(name))
        check_prometheus(Path(name))
