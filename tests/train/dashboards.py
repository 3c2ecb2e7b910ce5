#!/usr/bin/env python3
"""atoll-watch with packages that only note their calls: what they get, while a run goes on and when it resumes.

  dashboards.py ATOLL_WATCH"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WATCH = Path(sys.argv[1]).resolve()
LOGGER = '''
import json, os
def note(*call):
    with open(os.environ["CALLS"], "a") as file: file.write(json.dumps(call) + "\\n")
class Run:
    def log(self, metrics, step): note("log", step, metrics)
    def finish(self): note("finish")
def init(**settings):
    note("init", settings)
    return Run()
'''
MLFLOW = '''
import types
from wandb import note
entities = types.SimpleNamespace(Metric=lambda *fields: fields, Param=lambda *fields: fields)
class MlflowClient:
    def get_experiment_by_name(self, name): note("experiment", name)
    def create_experiment(self, name): return "id of " + name
    def create_run(self, experiment, run_name):
        note("run", experiment, run_name)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))
    def log_batch(self, run, metrics=(), params=()): note("batch", run, metrics, params)
    def set_terminated(self, run): note("end", run)
'''


def line(step, **figures):
    return json.dumps({"step": step, "loss": 1 / step, "seconds": 2, "between_steps_s": 1} | figures) + "\n"


class Folder:
    """A run, the packages, and their calls."""

    def __init__(self, folder):
        self.folder, self.out, self.notes = Path(folder), Path(folder, "some-run"), Path(folder, "notes")
        packages = self.folder / "packages"
        for place in (packages, self.out):
            place.mkdir()
        for name, text in (("wandb", LOGGER), ("trackio", LOGGER), ("mlflow", MLFLOW),
                           ("tensorboard", "raise ImportError(\"No module named 'tensorboard'\")")):
            (packages / f"{name}.py").write_text(text)
        self.steps, self.lock = self.out / "steps.jsonl", self.out / "run.lock"
        self.env = os.environ | {"PYTHONPATH": str(packages), "CALLS": str(self.notes)}

    def start(self, *arguments):
        self.notes.write_text("")
        return subprocess.Popen([sys.executable, WATCH, *map(str, arguments)], env=self.env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, *arguments, code=0):
        process = self.start(*arguments)
        text = process.communicate(timeout=60)[0]
        assert process.returncode == code, f"{arguments}: exit code {process.returncode}\n{text}"
        return text

    def calls(self):
        return [json.loads(call) for call in self.notes.read_text().splitlines()]

    def wait(self, *last):
        """Waits until the last call is this one."""
        for _ in range(200):
            if self.calls()[-1:] == [list(last)]:
                return
            time.sleep(0.05)
        raise AssertionError(f"the last call is not {last}: {self.calls()}")


def check_once(of):
    (of.out / "run_args.json").write_text(json.dumps({"lr": 0.5, "fp8": False, "freeze": ["a", "b"], "trace": "",
                                                      "plan": {"islands": []}}))
    norms = {"layers.0": {"gradient": 3, "weight": None}}
    of.steps.write_text(line(1, mfu=None, cpu_machine=0.25) + "{\n[1]\n" + line(2, eval_loss=9, norms=norms) +
                        line(3)[:9])
    text = of.run(of.out, "--to", "wandb", "--project", "p", "--once")
    assert text.count("left out a line that is no step") == 2 and "some-run: 2 steps in wandb\n" in text, text
    assert "some-run: sends steps from 1 on to wandb; look at them with: wandb sync, since" in text, text
    assert of.calls() == [
        ["init", {"project": "p", "name": "some-run", "config": {"lr": 0.5, "fp8": False, "freeze": "a b"}}],
        ["log", 1, {"train/loss": 1, "speed/step_s": 2, "machine/cpu": 0.25}],
        ["log", 2, {"train/loss": 0.5, "eval/loss": 9, "speed/step_s": 2, "gradient_norm/layers.0": 3}],
        ["finish"]], of.calls()
    of.steps.write_text(line(1) + line(2))
    os.utime(of.steps, (1000, 1000))
    text = of.run(of.out, "--to", "mlflow", "--once", "--dir", of.folder / "new")
    assert f"with: mlflow ui --backend-store-uri sqlite:///{of.folder.resolve()}/new/mlflow.db\n" in text, text
    assert of.calls() == [
        ["experiment", "atoll"], ["run", "id of atoll", "some-run"],
        ["batch", "7", [], [["lr", "0.5"], ["fp8", "False"], ["freeze", "a b"]]],
        ["batch", "7", [["train/loss", 1, 997000, 1], ["speed/step_s", 2, 997000, 1],
                        ["train/loss", 0.5, 1000000, 2], ["speed/step_s", 2, 1000000, 2]], []],
        ["end", "7"]], of.calls()


def check_several(of):
    other = of.folder / "other"
    other.mkdir()
    (other / "steps.jsonl").write_text(line(5))
    of.run(of.out, other, "--to", "trackio", "--once")
    logged = sorted(call[1] for call in of.calls() if call[0] == "log")
    assert logged == [1, 2, 5] and of.calls().count(["finish"]) == 2, of.calls()


def check_errors(of):
    text = of.run(of.out, "--to", "tensorboard", code=2)
    assert text == "atoll-watch: --to tensorboard: No module named 'tensorboard': pip install tensorboard\n", text
    assert "no such file" in of.run(of.folder / "absent", "--to", "wandb", "--once", code=1)
    text = of.run(of.folder, "--to", "wandb", code=2)
    assert (f"{of.folder}: a folder of 2 runs, other, some-run: name the runs, as in atoll-watch {of.folder}/other --to wandb, "
            f"or all of them: {of.folder}/*\n") in text, text
    assert "folders of the same name" in of.run(of.out, of.out, "--to", "wandb", code=2)


def check_waiting(of):
    """A wait for a folder that may be misspelled says so, and ends by Ctrl-C."""
    process, text = of.start(of.folder / "absent", "--to", "wandb"), ""
    for expected in (f"waits for {of.folder}/absent/steps.jsonl\n",
                     f"still waits for {of.folder}/absent/steps.jsonl: there is no such folder; Ctrl-C stops\n"):
        text = process.stdout.readline()
        assert text == "atoll-watch: " + expected, text
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and text == "atoll-watch: absent: 0 steps in wandb; stopped before the run ended\n", text


def check_following(of):
    of.steps.unlink()
    of.lock.write_text("")
    process = of.start(of.out, "--to", "trackio")
    shown = {step: {"train/loss": 1 / step, "speed/step_s": 2} for step in range(1, 5)}
    with open(of.steps, "w") as file:
        for part in (line(1), line(2)[:20]):
            print(part, end="", file=file, flush=True)
        of.wait("log", 1, shown[1])
        print(line(2)[20:] + line(3), end="", file=file, flush=True)
        of.wait("log", 3, shown[3])
    # The trainer resumes after step 1: it keeps the line of that step in a new file.
    draft = of.out / "draft"
    draft.write_text(line(1))
    draft.rename(of.steps)
    time.sleep(1)
    with open(of.steps, "a") as file:
        print(line(2, loss=7), end="", file=file, flush=True)
        of.wait("log", 2, shown[2] | {"train/loss": 7})
        print(line(3) + line(4), end="", file=file)
    of.lock.unlink()
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "some-run: 4 steps in trackio; the run has ended\n" in text, text
    for name, step in (("some-run", 1), ("some-run-from-2", 2)):
        line_of_start = f"{name}: sends steps from {step} on to trackio; look at them with: trackio show --project atoll\n"
        assert line_of_start in text, text
    names = [call[1]["name"] for call in of.calls() if call[0] == "init"]
    logged = [call[1] for call in of.calls() if call[0] == "log"]
    assert names == ["some-run", "some-run-from-2"] and logged == [1, 2, 3, 2, 3, 4], of.calls()
    assert of.calls().count(["finish"]) == 2 and of.calls()[-1] == ["finish"], of.calls()
    of.lock.write_text("")  # a killed run leaves its lock, so atoll-watch waits until a signal ends it
    process = of.start(of.out, "--to", "wandb")
    of.wait("log", 4, shown[4])
    process.terminate()
    text = process.communicate(timeout=60)[0]
    assert "4 steps in wandb; stopped before the run ended" in text, text
    assert process.returncode == 143 and of.calls()[-1] == ["finish"], of.calls()


with tempfile.TemporaryDirectory() as name:
    folder = Folder(name)
    for check in (check_once, check_several, check_errors, check_waiting, check_following):
        check(folder)
print("atoll-watch: once, several runs, errors, a run that resumes")
