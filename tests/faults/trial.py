"""One trial: starts the ranks of a job, makes the fault, and collects how each rank ends."""

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

LOG_LINE = re.compile(r"^[0-9-]{10} [0-9:.]{12} atoll ")


class Wrong(Exception):
    """The result of a trial is not the expected one."""


class NotMade(Exception):
    """The fault could not be made, so the trial shows nothing."""


class Rank:
    def __init__(self, number, host):
        self.number = number
        self.host = host
        self.pid = 0
        self.process = None
        self.status = None  # exit status as in subprocess: -N after the signal N
        self.ended = 0.0
        self.output = ""

    @property
    def lines(self):
        return [line for line in self.output.splitlines() if line and not LOG_LINE.match(line)]


class Trial:
    def __init__(self, programs, hosts, folder, fault, moment):
        self.programs, self.hosts, self.folder = programs, hosts, Path(folder)
        self.fault, self.moment = fault, moment
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.disk = hosts.disk / self.folder.name
        shutil.rmtree(self.disk, ignore_errors=True)
        self.disk.mkdir()
        (self.folder / "disk").symlink_to(self.disk)
        count = 3 if hosts.count == 3 else 4
        self.ranks = [Rank(i, i * hosts.count // count) for i in range(count)]
        self.victim = self.ranks[random.randrange(count)]
        self.delay = random.randrange(20_000)
        self.port = hosts.new_port()
        self.begin = self.fault_at = time.monotonic()
        self.launcher = None
        self.strangers = []
        self.said = ""  # what the strangers have printed
        self.rate = 0.0  # connections per second of a flood

    # --- processes ---

    def rank_environment(self, rank):
        result = {n: value for n, value in os.environ.items() if not n.startswith("ATOLL_")}
        result.update(
            ATOLL_RANK=str(rank.number), ATOLL_SIZE=str(len(self.ranks)), ATOLL_TOKEN="secret",
            ATOLL_ADDR=f"{self.hosts.address(0)}:{self.port}", ATOLL_LOG="error",
            ATOLL_RENDEZVOUS_TIMEOUT="8", ATOLL_TIMEOUT="20", ATOLL_FILE_TIMEOUT="20")
        if self.hosts.count > 1:
            result["ATOLL_INTERFACE"] = "eth0"
        result.update(self.fault.environment)
        if rank is self.victim:
            result.update(self.fault.victim_environment(self))
        return result

    def command(self, rank):
        return self.hosts.prefix(rank.host) + [
            self.programs.job, self.fault.planted, self.moment, str(self.victim.number),
            str(self.delay), str(self.folder)]

    def start(self):
        for rank in self.ranks:
            with open(self.folder / f"rank{rank.number}.txt", "wb") as output:
                rank.process = subprocess.Popen(
                    self.command(rank), env=self.rank_environment(rank),
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            rank.pid = rank.process.pid

    def start_by_launcher(self):
        """Starts the ranks by a shell with the name of a launcher, for faults of the launcher."""
        shell = self.folder / "mpirun"
        shell.symlink_to(shutil.which("bash"))
        script = []
        for rank in self.ranks:
            values = self.rank_environment(rank).items()
            words = [f"{name}={value}" for name, value in values if name.startswith("ATOLL_")]
            quoted = shlex.join(words + self.command(rank))
            file = self.folder / f"rank{rank.number}"
            script.append(f"(echo $BASHPID >{file}.pid; exec env {quoted}) "
                          f">{file}.txt 2>&1 </dev/null &")
        self.launcher = subprocess.Popen([shell, "-c", "\n".join(script + ["wait"])])
        for rank in self.ranks:
            file = self.folder / f"rank{rank.number}.pid"
            wait_until(lambda f=file: f.exists() and f.read_text().endswith("\n"), 10, "a start")
            rank.pid = int(file.read_text())

    def start_stranger(self, *words, host=0):
        command = self.hosts.prefix(host) + [self.programs.stranger, *map(str, words)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.strangers.append(process)
        return process

    def running(self):
        return [rank for rank in self.ranks if rank.status is None]

    def poll(self):
        """Records which ranks have ended. A rank may be an orphan of the launcher."""
        for rank in self.running():
            try:
                pid, status = os.waitpid(rank.pid, os.WNOHANG)
            except ChildProcessError:
                if self.launcher is None or self.launcher.poll() is None:
                    continue
                pid, status = rank.pid, 0
            if pid == 0:
                continue
            rank.status = os.waitstatus_to_exitcode(status)
            rank.ended = time.monotonic()
            if rank.process is not None:
                rank.process.returncode = rank.status

    # --- the run ---

    def run(self):
        self.fault.prepare(self)
        self.begin = time.monotonic()
        if self.fault.needs_launcher:
            self.start_by_launcher()
        else:
            self.start()
        try:
            self.await_fault()
            self.fault.disturb(self)
            (self.folder / "go").touch()
            self.await_end()
        finally:
            self.clean_up()
        self.fault.check(self)
        self.check_nothing_left()

    def await_fault(self):
        at = self.folder / "at"
        deadline = time.monotonic() + 20
        while not at.exists():
            self.poll()
            if not self.running() and not at.exists():
                self.collect()
                if not self.fault.may_come_late(self) and all(r.status == 0 for r in self.ranks):
                    raise Wrong("the job succeeded before the fault")
                return  # the job failed before the moment, or could not create the file
            if time.monotonic() > deadline:
                self.collect()
                raise Wrong("the job did not come to the moment")
            time.sleep(0.001)
        self.fault_at = float(at.read_text())

    def await_end(self):
        deadline = time.monotonic() + self.fault.limit
        while self.running():
            self.poll()
            if self.fault.ends_last(self) and self.running() == [self.victim]:
                os.kill(self.victim.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                hung = ", ".join(str(rank.number) for rank in self.running())
                self.kill_all()
                self.collect()
                raise Wrong(f"ranks {hung} still run after {self.fault.limit} s")
            time.sleep(0.002)
        self.collect()

    def kill_all(self):
        for rank in self.running():
            try:
                os.kill(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 5
        while self.running() and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.002)

    def collect(self):
        for rank in self.ranks:
            file = self.folder / f"rank{rank.number}.txt"
            rank.output = file.read_text(errors="replace") if file.exists() else ""

    def end_strangers(self):
        """Ends the strangers, and adds what they have printed to `said`."""
        for process in self.strangers:
            process.terminate()
        for process in self.strangers:
            try:
                self.said += process.communicate(timeout=5)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.strangers = []

    def clean_up(self):
        self.kill_all()
        self.end_strangers()
        if self.launcher:
            if self.launcher.poll() is None:
                self.launcher.kill()
            self.launcher.wait()
        self.hosts.undisturb()

    @property
    def seconds(self):
        """Returns the seconds from the fault until the last rank has ended."""
        last = max((rank.ended for rank in self.ranks if rank.ended), default=time.monotonic())
        return max(0.0, last - self.fault_at)

    # --- what a trial may leave behind ---

    def check_nothing_left(self):
        mark = str(self.folder).encode()
        for entry in os.scandir("/proc"):
            try:
                if entry.name.isdigit() and mark in Path(entry.path, "cmdline").read_bytes():
                    raise Wrong(f"process {entry.name} is left")
            except OSError:
                continue
        if names := self.hosts.left_in_memory():
            raise Wrong(f"left in /dev/shm: {', '.join(names)}")
        left = [name for name in os.listdir(self.disk) if name != "checkpoint"]
        if left and not self.fault.may_leave_partial(self):
            raise Wrong(f"left on the disk: {', '.join(left)}")

    def checkpoint_step(self):
        """Returns the step of the checkpoint, which must be whole; 0 if there is none."""
        if not (self.disk / "checkpoint").exists():
            return 0
        result = subprocess.run([self.programs.job, "check", self.folder], timeout=60, text=True,
                                capture_output=True, env={**os.environ, "ATOLL_LOG": "error"})
        found = re.match(r"checkpoint of step (\d+) is whole", result.stdout)
        if not found:
            raise Wrong(f"the checkpoint is not whole: {result.stdout}{result.stderr}")
        return int(found[1])


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"not within {seconds} s: {what}")
        time.sleep(0.002)
