"""The faults: when and where each happens, how the script makes it, and the expected result."""

import glob
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from hosts import fill
from trial import Wrong

MOMENTS = ["opening", "gather", "reduce", "save", "end"]


class Fault:
    """The base class of all faults. As a fault of its own, it changes nothing."""

    name = "none"
    want = "right result"
    moments = MOMENTS
    hosts = (1, 2, 3)
    needs_namespaces = False
    needs_launcher = False
    delayed = False  # true if a second thread of the victim makes the fault, a random time later
    environment = {}
    limit = 60  # seconds after which a job counts as hung

    @property
    def planted(self):
        """The argument FAULT of the program fault_job."""
        return self.name

    def skipped(self):
        """Returns why this machine cannot run the fault; "" if it can."""
        return ""

    def victim_environment(self, _trial):
        return {}

    def prepare(self, trial):
        """Called before the ranks start."""

    def disturb(self, trial):
        """Called when the victim waits at the moment. Makes the fault."""

    def ends_last(self, _trial):
        """Returns true if the victim ends only when the script kills it."""
        return False

    def may_leave_partial(self, _trial):
        return False

    def may_come_late(self, trial):
        """Returns true if the job may succeed before the fault happens."""
        return self.name == "none" or (self.delayed and trial.moment == "end")

    def check(self, trial):
        right(trial)


# --- expected results ---


def right(trial):
    """Checks that every rank has the right result, and that the checkpoint is that of step 3."""
    for rank in trial.ranks:
        if rank.status != 0 or rank.lines != [f"rank {rank.number}: right"]:
            raise Wrong(f"rank {rank.number} ended with {rank.status}")
    if trial.checkpoint_step() != 3:
        raise Wrong("no checkpoint of step 3")


def whole_checkpoint(trial):
    """Checks that the checkpoint is the old one or the new one."""
    step = trial.checkpoint_step()
    least = {"opening": 0, "gather": 1, "reduce": 1, "save": 1, "end": 3}[trial.moment]
    if step < least:
        raise Wrong(f"the checkpoint of step {least} is lost")


def reason(rank):
    """Returns the text of a rank without its own number and without times, which contain numbers
    too."""
    return re.sub(r"\b\d+(\.\d+)? m?s\b", "a time", rank.output.split(": ", 1)[-1])


def failed_with_line(rank, pattern):
    """Checks that the rank failed with one line, and that the line matches the pattern."""
    lines = rank.lines
    if rank.status != 1 or len(lines) != 1 or not lines[0].startswith(f"rank {rank.number}: "):
        raise Wrong(f"rank {rank.number} ended with {rank.status} and {len(lines)} lines")
    if "WRONG" in lines[0] or not re.search(pattern, reason(rank)):
        raise Wrong(f"rank {rank.number} does not say {pattern}")


def succeeded(rank):
    return rank.status == 0 and rank.lines == [f"rank {rank.number}: right"]


def others_name(trial, within):
    """Checks that every other rank ends within `within` seconds with a line that names the victim
    and no other rank as lost.

    Some ranks may succeed instead, because they no longer need the victim: any rank at the moment
    `end`, and all of them at the moment `save`, where the fault comes up to 20 ms late. A rank that
    joins after rank 0 has ended can only report that it cannot reach the store."""
    victim = trial.victim.number
    others = [rank for rank in trial.ranks if rank is not trial.victim]
    all_right = trial.moment == "save" and all(succeeded(rank) for rank in others)
    pattern = rf"\brank {victim}\b|^timeout: .*\b{victim}\b"
    if trial.moment == "opening" and victim == 0:
        pattern += "|cannot reach the store of rank 0"
    for rank in others:
        if all_right or (trial.moment == "end" and succeeded(rank)):
            continue
        failed_with_line(rank, pattern)
        lost = re.findall(r"rank (\d+) \([^)]*\) was lost|lost rank (\d+)", rank.output)
        blamed = {int(number) for pair in lost for number in pair if number}
        if blamed - {victim}:
            raise Wrong(f"rank {rank.number} blames {blamed}")
        if rank.ended - trial.fault_at > within:
            late = rank.ended - trial.fault_at
            raise Wrong(f"rank {rank.number} ended only after {late:.1f} s")
    whole_checkpoint(trial)
    if all_right and trial.checkpoint_step() != 3:
        raise Wrong("no checkpoint of step 3")


def all_fail(trial, pattern):
    """Checks that the job has the right result, or that every rank fails with one line and at least
    one line has the reason."""
    if all(succeeded(rank) for rank in trial.ranks):
        return right(trial)
    for rank in trial.ranks:
        if not (trial.moment == "end" and succeeded(rank)):
            failed_with_line(rank, "")
    if not any(re.search(pattern, reason(rank)) for rank in trial.ranks):
        raise Wrong(f"no rank says {pattern}")
    whole_checkpoint(trial)


# --- faults of a process ---


def within(trial):
    """Returns the seconds within which the other ranks must end. If the victim has not joined yet,
    they notice only at the rendezvous timeout that it is absent."""
    rendezvous = int(trial.fault.environment["ATOLL_RENDEZVOUS_TIMEOUT"])
    return rendezvous + 2 if trial.moment == "opening" else 2


class Kill(Fault):
    name = "kill"
    delayed = True
    environment = {"ATOLL_RENDEZVOUS_TIMEOUT": "3"}
    want = ("every other rank ends within 2 s (5 s at opening) with one line, which names only the "
            "killed rank")
    signal = signal.SIGKILL

    def check(self, trial):
        if trial.victim.status != -self.signal:
            if trial.victim.status == 0 and trial.moment in ("opening", "end"):
                return right(trial)  # the rank ended before the signal came
            raise Wrong(f"the victim ended with {trial.victim.status}")
        others_name(trial, within(trial))

    def may_leave_partial(self, trial):
        return trial.victim.number == 0


class Segfault(Kill):
    name = "segfault"
    signal = signal.SIGSEGV


class Exit(Fault):
    name = "exit"
    environment = {"ATOLL_RENDEZVOUS_TIMEOUT": "3"}
    want = ("every other rank ends within 2 s (5 s at opening) with one line, which names the rank "
            "that ended")

    def check(self, trial):
        if trial.victim.status != 3 or trial.victim.lines:
            raise Wrong(f"the victim ended with {trial.victim.status}")
        others_name(trial, within(trial))

    def may_leave_partial(self, trial):
        return trial.victim.number == 0


class Exception_(Exit):
    name = "exception"
    want = ("every other rank ends within 2 s (5 s at opening) with one line, which names the rank "
            "that threw")

    def check(self, trial):
        failed_with_line(trial.victim, "planted exception")
        others_name(trial, within(trial))


class Stop(Fault):
    name = "stop"
    delayed = True
    want = "a rank that stops for 5 s, longer than the limit for a cut (2 s), changes nothing"
    environment = {"ATOLL_CUT_TIMEOUT": "2"}

    def disturb(self, trial):
        time.sleep(5)
        trial.poll()
        if trial.victim.status is None:  # at the end of the job the rank may end before it stops
            os.kill(trial.victim.pid, signal.SIGCONT)


class Hang(Fault):
    name = "hang"
    delayed = True
    want = ("other ranks end within 20 s (25 s at opening; timeout: 3 s) with one line, which "
            "names the stopped rank")
    environment = {"ATOLL_TIMEOUT": "3", "ATOLL_FILE_TIMEOUT": "3", "ATOLL_RENDEZVOUS_TIMEOUT": "3"}

    def ends_last(self, _trial):
        return True

    def check(self, trial):
        if trial.victim.status == 0:
            return right(trial)
        # The store answers a request after the timeout at the latest, and a rank waits 10 s longer
        # for the answer. While a rank joins, it grants the other ranks another 10 s.
        others_name(trial, 25 if trial.moment == "opening" else 20)

    def may_leave_partial(self, trial):
        return trial.victim.number == 0


class Parent(Fault):
    name = "parent killed"
    want = "every rank ends within 8 s with one line, which names the launcher"
    needs_launcher = True
    limit = 20

    @property
    def planted(self):
        return "parent"

    def disturb(self, trial):
        if trial.moment == "opening":
            time.sleep(0.3)  # until the other ranks have looked for their launcher
        trial.launcher.kill()
        trial.launcher.wait()

    def check(self, trial):
        for rank in trial.ranks:
            # At the moment `end`, a rank may end before it notices the launcher's end.
            if not (trial.moment == "end" and rank.lines == [f"rank {rank.number}: right"]):
                failed_with_line(rank, r"mpirun \(process \d+\)")
        if trial.seconds > 8:
            raise Wrong(f"the last rank ended after {trial.seconds:.1f} s")
        whole_checkpoint(trial)


# --- faults of the network ---


class Network(Fault):
    hosts = (2, 3)
    needs_namespaces = True


class Cut(Network):
    name = "cut"
    want = "every rank ends within 20 s and a line names both hosts, or no rank needs the link"
    environment = {"ATOLL_CUT_TIMEOUT": "2"}

    def ends(self, trial):
        return (1, 2) if trial.hosts.count == 3 else (0, 1)

    def disturb(self, trial):
        trial.hosts.command("cut {} {}".format(*self.ends(trial)))

    def check(self, trial):
        a, b = self.ends(trial)
        # The cut may also separate a rank from the store. Before data connections exist, a line can
        # have only the addresses of the hosts, not their names.
        store = "did not join|which serves the store"
        all_fail(trial, rf"node[{a}{b}]|198\.18\.0\.[{a + 1}{b + 1}]|{store}")
        if trial.moment in ("gather", "reduce") and all(succeeded(rank) for rank in trial.ranks):
            raise Wrong("nobody noticed the cut")
        if trial.hosts.count == 3 and not all(succeeded(rank) for rank in trial.ranks):
            both = any("node1" in r.output and "node2" in r.output for r in trial.ranks)
            if not both and trial.moment != "opening":
                raise Wrong("no line names node1 and node2")
        if trial.seconds > 20:
            raise Wrong(f"the last rank ended after {trial.seconds:.1f} s")


class Vanish(Cut):
    name = "host vanishes"
    want = "within 20 s every rank ends, and the others name the host that no longer answers"

    @property
    def planted(self):
        return "vanish"

    def disturb(self, trial):
        trial.hosts.command(f"silence {trial.victim.host}")

    def check(self, trial):
        for rank in trial.ranks:
            if not (trial.moment == "end" and succeeded(rank)):
                failed_with_line(rank, "")
        victim = trial.victim.host
        lost = "|".join(str(r.number) for r in trial.ranks if r.host == victim)
        name = re.compile(rf"node{victim}|\branks? [\d, and-]*\b({lost})\b")
        others = [r for r in trial.ranks if r.host != victim and not succeeded(r)]
        if others and not any(name.search(reason(r)) for r in others):
            raise Wrong("no line names the host")
        if trial.seconds > 20:
            raise Wrong(f"the last rank ended after {trial.seconds:.1f} s")
        whole_checkpoint(trial)


class Bad(Network):
    environment = {"ATOLL_TIMEOUT": "60"}

    def __init__(self, name, command):
        self.name, self._command = name, command
        self.want = "right result, later"

    @property
    def planted(self):
        return "network"

    def disturb(self, trial):
        trial.hosts.command(self._command)


class Corrupt(Network):
    name = "corrupted message"
    want = "with CRC-32C every rank ends with one line, and one says that the data is damaged"
    moments = ["opening", "gather", "reduce", "save"]
    environment = {"ATOLL_TCP_CHECKSUM": "crc32c"}

    @property
    def planted(self):
        return "corrupt"

    def disturb(self, trial):
        trial.hosts.command("corrupt")

    def check(self, trial):
        all_fail(trial, r"corrupted on its way \(CRC-32C\)")
        if all(succeeded(rank) for rank in trial.ranks):
            raise Wrong("nobody noticed")


# --- strangers ---


def ports_of_job(trial):
    """Returns the ports on which the job listens on its first host."""
    return set(trial.hosts.listening([r.pid for r in trial.ranks if r.host == 0])) | {trial.port}


class Flood(Fault):
    name = "flood"
    want = "right result during 10,000 connections per second from strangers to all ports of host 0"
    limit = 60
    rate = 10_000

    def disturb(self, trial):
        ports = ports_of_job(trial)
        trial.start_stranger("flood", self.rate, trial.hosts.address(0), *ports)
        time.sleep(0.2)


class FloodElsewhere(Flood):
    """A flood against another process, to compare its times with those of Flood: the flood itself
    also takes processor time."""

    name = "flood elsewhere"
    want = "the same flood against a plain listener: the time to compare with"

    @property
    def planted(self):
        return "flood"

    def disturb(self, trial):
        port = trial.hosts.new_port()
        trial.start_stranger("accept", port)
        trial.start_stranger("flood", self.rate, "127.0.0.1", port)
        time.sleep(0.2)


class FloodKill(Flood):
    name = "flood and kill"
    want = "during a flood, other ranks end within 2 s with one line, which names the killed rank"
    moments = ["gather", "reduce", "save", "end"]

    @property
    def planted(self):
        return "flood"

    def disturb(self, trial):
        super().disturb(trial)
        trial.fault_at = time.monotonic()
        os.kill(trial.victim.pid, signal.SIGKILL)

    def check(self, trial):
        others_name(trial, 2)

    def may_leave_partial(self, trial):
        return trial.victim.number == 0


class HalfOpen(Fault):
    name = "half-open"
    want = "right result during 200 connections to each port of host 0, silent or with a few bytes"

    @property
    def planted(self):
        return "flood"

    def disturb(self, trial):
        ports = ports_of_job(trial)
        stranger = trial.start_stranger("silent", 200 * len(ports), trial.hosts.address(0), *ports)
        stranger.stdout.readline()


class Stranger(Fault):
    name = "stranger's token"
    want = "a process with another token is refused with one line; the job has the right result"

    @property
    def planted(self):
        return "stranger"

    def disturb(self, trial):
        environment = {**trial.rank_environment(trial.victim), "ATOLL_TOKEN": "wrong",
                       "ATOLL_RENDEZVOUS_TIMEOUT": "2"}
        if trial.victim.number == 0:
            environment["ATOLL_RANK"] = "1"
        words = trial.hosts.prefix(0) + [trial.programs.job, "none", "none", "-1", "0", "/nowhere"]
        result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=20)
        said = result.stdout.strip()
        # At `opening` rank 0 may be the victim: then it waits before it joins, and nobody listens.
        reason = "" if trial.moment == "opening" else "token"
        if result.returncode != 1 or reason not in said or "\n" in said:
            raise Wrong(f"the stranger ended with {result.returncode}: {said}")


class WrongToken(Fault):
    name = "wrong token"
    want = "every rank says after the rendezvous timeout (2 s) that a token is wrong"
    moments = ["opening"]
    environment = {"ATOLL_RENDEZVOUS_TIMEOUT": "2"}

    @property
    def planted(self):
        return "none"

    def victim_environment(self, _trial):
        return {"ATOLL_TOKEN": "wrong"}

    def check(self, trial):
        for rank in trial.ranks:
            failed_with_line(rank, "token")
        if trial.seconds > 6:
            raise Wrong(f"the last rank ended after {trial.seconds:.1f} s")


# --- resources ---


class FullDisk(Fault):
    name = "full disk"
    want = "every rank ends with one line: `No space left` and the file; old checkpoint whole"
    moments = ["opening", "gather", "reduce", "save"]
    needs_namespaces = True

    @property
    def planted(self):
        return "disk"

    def disturb(self, trial):
        fill(trial.hosts.disk)

    def check(self, trial):
        for rank in trial.ranks:
            failed_with_line(rank, r"checkpoint.*No space left on device")
        if trial.checkpoint_step() != (0 if trial.moment == "opening" else 1):
            raise Wrong("the old checkpoint is lost")


class SlowDisk(Fault):
    name = "slow disk"
    want = "right result, although each sync of a rank takes 1.5 s and the timeout is 2 s"
    moments = ["opening", "gather", "reduce", "save"]
    environment = {"ATOLL_TIMEOUT": "2", "ATOLL_FILE_TIMEOUT": "30"}

    @property
    def planted(self):
        return "disk"

    def victim_environment(self, trial):
        return {"LD_PRELOAD": trial.programs.slow_disk, "FAULTS_SYNC_MS": "1500",
                "FAULTS_SLOW_WHEN": str(trial.folder / "go")}


class FullShm(Fault):
    name = "full shm"
    want = "right result with a full /dev/shm"
    needs_namespaces = True

    @property
    def planted(self):
        return "shm"

    def disturb(self, trial):
        for host in range(trial.hosts.count):
            fill(trial.hosts.shm(host))


class Descriptors(Fault):
    name = "few descriptors"
    want = "with 0 to 11 more descriptors: right result, or one line per rank, one with the reason"

    @property
    def planted(self):
        return "descriptors"

    def check(self, trial):
        all_fail(trial, r"descriptor|open files")


class Memory(Fault):
    name = "out of memory"
    want = "with 0 to 20 MB more memory: right result, or one line per rank, one with the reason"

    @property
    def planted(self):
        return "memory"

    def check(self, trial):
        all_fail(trial, r"memory|bad_alloc|Resource temporarily unavailable")


class Clock(Fault):
    name = "clock jump"
    want = "right result although the clock of a rank jumps by a day, forwards or back"
    library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)

    def skipped(self):
        return "" if self.library else "libfaketime is not installed"

    @property
    def planted(self):
        return "clock"

    def victim_environment(self, trial):
        return {"LD_PRELOAD": self.library, "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_TIMESTAMP_FILE": str(trial.folder / "clock")}

    def prepare(self, trial):
        Path(trial.folder, "clock").write_text("+0\n")

    def disturb(self, trial):
        Path(trial.folder, "clock").write_text("+1d\n" if trial.delay % 2 else "-1d\n")


FAULTS = [
    Fault(), Kill(), Stop(), Hang(), Segfault(), Exit(), Exception_(), Parent(),
    Cut(), Vanish(), Bad("loss 5 %", "loss 0.05"), Bad("delay 200 ms", "delay 200"),
    Bad("bit errors 2 %", "noise 0.02"), Corrupt(),
    Flood(), FloodElsewhere(), FloodKill(), HalfOpen(), Stranger(), WrongToken(),
    FullDisk(), SlowDisk(), FullShm(), Descriptors(), Memory(), Clock(),
]
