"""Runs the training jobs of walk in its own namespaces, so that it finds all that a job leaves.

Reads requests as lines of JSON and answers each with a line. {"count": PHASE, "rank": R} runs a
clean job in which rank R logs its points. {"phase": PHASE, "rank": R, "point": P} runs a job in
which P fails on rank R, and answers with the result, the defects, the seconds, and the output of
the ranks.
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

PORT = 29400
# Matches a line of atoll's log.
LOG = re.compile(r"[0-9-]{10} [0-9:.]{12} atoll ")
CONFIG = {"model_type": "mistral", "hidden_size": 32, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64,
          "vocab_size": 259, "max_position_embeddings": 128}
SIZE = 2


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Hosts:
    """One or two emulated hosts, each with its own network, host name and shared memory."""

    def __init__(self, count):
        run("hostname", "node0")
        run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        run("ip", "link", "set", "lo", "up")
        self.enter = [[]]
        self.pids = {os.getpid()}
        self.address = "127.0.0.1"
        if count == 2:
            self.add_second()

    def add_second(self):
        script = ("hostname node1 && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && "
                  "echo ready && exec sleep infinity")
        self.second = subprocess.Popen(
            ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-c", script],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.second.stdout.readline()
        pid = str(self.second.pid)
        self.pids.add(self.second.pid)
        self.enter.append(["nsenter", "--target", pid, "--net", "--uts", "--ipc", "--mount"])
        run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", pid)
        for number, enter in enumerate(self.enter):
            run(*enter, "ip", "addr", "add", f"198.18.0.{number + 1}/24", "dev", "eth0")
            run(*enter, "ip", "link", "set", "eth0", "up")
        self.address = "198.18.0.1"

    def of_rank(self, rank):
        return self.enter[rank % len(self.enter)]

    def leftovers(self):
        """Returns what a job left: shared memory and processes, which are ended."""
        found = []
        for number, enter in enumerate(self.enter):
            names = subprocess.run([*enter, "ls", "-A", "/dev/shm"], text=True, check=True,
                                   capture_output=True).stdout.split()
            found += [f"node{number}:/dev/shm/{name}" for name in names]
            if names:
                run(*enter, "find", "/dev/shm", "-mindepth", "1", "-delete")
        reap()
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) not in self.pids:
                command = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"process {entry} {command.decode()}")
                os.kill(int(entry), signal.SIGKILL)
        time.sleep(0.05 if found else 0)
        reap()
        return found


def reap():
    """Takes the exit status of orphans of jobs: this process is init in its PID namespace."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def digest(folder):
    """Returns a digest of each file below a folder, by relative name."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*")) if p.is_file()}


class Outcome:
    """How the ranks of a job ended."""

    def __init__(self):
        self.status, self.output, self.seconds, self.hung = [], [], 0.0, []


class Jobs:
    def __init__(self, settings):
        self.settings = settings
        run("mount", "-t", "tmpfs", "tmpfs", "/mnt")  # before the second host copies the mounts
        self.hosts = Hosts(settings["hosts"])
        self.root = pathlib.Path("/mnt")
        self.out = self.root / "out"
        (self.root / "model.json").write_text(json.dumps(CONFIG))
        records = [{"instruction": f"Say {i}.", "input": "", "output": str(i)} for i in range(8)]
        (self.root / "data.json").write_text(json.dumps(records))
        self.clean()

    def clean(self):
        """Runs both phases without failures and keeps their results."""
        self.require(self.job("start"))
        shutil.copytree(self.out, self.root / "started", symlinks=True)
        self.started = digest(self.out)
        self.names = set(self.started)
        self.require(self.job("resume"))
        self.weights = self.result()
        self.names |= set(digest(self.out))

    def require(self, outcome):
        if any(outcome.status):
            sys.exit(f"inject: a clean run fails: {outcome.status} {outcome.output}")

    def result(self):
        """Returns a digest of the weights after the last step, which must be equal in all runs."""
        return hashlib.sha256((self.out / "weights.safetensors").read_bytes()).hexdigest()

    def prepare(self, phase):
        shutil.rmtree(self.out, ignore_errors=True)
        if phase == "resume":
            shutil.copytree(self.root / "started", self.out, symlinks=True)

    def job(self, phase, rank=None, **injection):
        """Runs a phase in a fresh folder, with the variables `injection` on one rank."""
        self.prepare(phase)
        return self.train(phase, rank, injection)

    def train(self, phase, rank=None, injection=None):
        flags = ["--model", self.root / "model.json", "--data", self.root / "data.json",
                 "--seq", 64, "--global-batch", 4, "--micro-batch", 2, "--threads", 1,
                 "--device", "cpu", "--backend", "host", "--strategy", "full_shard",
                 "--mesh", "1x2", "--quiet",
                 "--lr-schedule", "constant", "--peak-seconds", 0.001, "--out", self.out]
        if phase == "start":
            flags += ["--steps", 2]
        else:
            flags += ["--steps", 4, "--resume", "auto",
                      "--export", self.out / "weights.safetensors"]
        outcome, start = Outcome(), time.monotonic()
        ranks = []
        for r in range(SIZE):
            ranks.append(self.start_rank(r, flags, injection if r == rank else None))
        end = start + self.settings["limit"]
        for r, process in enumerate(ranks):
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                outcome.hung.append(r)
        outcome.seconds = time.monotonic() - start
        for r, process in enumerate(ranks):
            if r in outcome.hung:
                os.killpg(process.pid, signal.SIGKILL)
            outcome.status.append(process.wait())
            outcome.output.append((self.root / f"rank{r}").read_text(errors="replace"))
        return outcome

    def start_rank(self, rank, flags, injection):
        variables = {"PATH": os.environ["PATH"], "ATOLL_RANK": rank, "ATOLL_SIZE": SIZE,
                     "ATOLL_ADDR": f"{self.hosts.address}:{PORT}", "ATOLL_TOKEN": "injected",
                     "ATOLL_RENDEZVOUS_TIMEOUT": 3, "ATOLL_TIMEOUT": 6, "ATOLL_PARENT": "parent",
                     "ATOLL_OWNS_PROCESS": 1}
        if injection:
            variables |= {"LD_PRELOAD": self.settings["library"], **injection}
        environment = {name: str(value) for name, value in variables.items()}
        # The shell is the parent that the rank watches. Neither it nor nsenter loads the library.
        command = [*self.hosts.of_rank(rank), "sh", "-c", 'env "$@"; exit $?', "rank",
                   *(f"{n}={v}" for n, v in environment.items()),
                   self.settings["train"], *map(str, flags)]
        with open(self.root / f"rank{rank}", "wb") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                    cwd=self.root, env={"PATH": os.environ["PATH"]},
                                    start_new_session=True)

    def count(self, phase, rank):
        log = self.root / "log"
        self.require(self.job(phase, rank, INJECT_LOG=log))
        return {"log": log.read_text()}

    def inject(self, phase, rank, point):
        hit = self.root / "hit"
        hit.unlink(missing_ok=True)
        outcome = self.job(phase, rank, INJECT_FAIL=point, INJECT_HIT=hit)
        defects = [f"hangs: rank {r}" for r in outcome.hung]
        defects += [f"left: {what}" for what in self.hosts.leftovers()]
        failed = any(outcome.status)
        if self.out.exists():
            extra = set(digest(self.out)) - self.names
            defects += [f"left: {name}" for name in sorted(extra)]
        defects += self.check_failure(outcome, rank) if failed else []
        # The other rank may succeed if rank `rank` fails only while it writes the last results.
        done = outcome.status[1 - rank] == 0
        defects += self.check_success(phase) if done else self.check_checkpoint(phase)
        result = "failed" if failed else "succeeded"
        if not hit.exists():
            result = "not reached"
        return {"result": result, "defects": defects, "seconds": outcome.seconds,
                "output": outcome.output}

    def check_failure(self, outcome, injected):
        """Checks how the ranks of a failed job ended."""
        defects = []
        for rank, (status, output) in enumerate(zip(outcome.status, outcome.output)):
            lines = [line for line in output.splitlines() if line and not LOG.match(line)]
            if rank in outcome.hung:
                continue
            if status < 0 or status > 128:
                defects.append(f"rank {rank} died of signal {abs(status) % 128}")
            elif status == 0:
                if rank == injected:
                    defects.append(f"rank {rank} succeeded, but not the other")
            elif len(lines) != 1 or not lines[0].startswith("atoll-train: "):
                defects.append(f"rank {rank} printed {len(lines)} lines: {lines}")
            elif re.search(r"std::|basic_string|vector::", lines[0]):
                defects.append(f"rank {rank} printed an unclear line: {lines[0]}")
        return defects

    def check_success(self, phase):
        if phase == "start":
            return self.check_resume()
        return [] if self.result() == self.weights else ["other weights"]

    def check_checkpoint(self, phase):
        """Checks that a run can resume after a failure."""
        folder = self.out / "checkpoints"
        if phase == "start" and not any(folder.glob("step-*/index.json")):
            return []
        old = {n: d for n, d in self.started.items() if n.startswith("checkpoints/")}
        now = {f"checkpoints/{n}": d for n, d in digest(folder).items()}
        return [] if now == old else self.check_resume()

    def check_resume(self):
        outcome = self.train("resume")
        if any(outcome.status) or outcome.hung:
            return [f"cannot resume: {outcome.output}"]
        return [] if self.result() == self.weights else ["other weights after resuming"]


def main():
    jobs = Jobs(json.loads(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        if "count" in request:
            answer = jobs.count(request["count"], request["rank"])
        else:
            answer = jobs.inject(request["phase"], request["rank"], request["point"])
        print(json.dumps(answer), flush=True)


main()
