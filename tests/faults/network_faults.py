"""Faults of the network, and strangers that connect to a job."""

import os
import re
import signal
import subprocess
import time

from fault import Fault, all_fail, failed_with_line, others_name, reason, right, succeeded, \
    whole_checkpoint, within
from trial import NotMade, Wrong

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
        # The cut may also separate a rank from the store. Before data connections exist, an error
        # can contain only the addresses of the hosts, not their names.
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
    attempts = 10  # after the moment, the victim's host may have nothing large to send or receive

    @property
    def planted(self):
        return "corrupt"

    def disturb(self, trial):
        trial.hosts.command("corrupt")

    def check(self, trial):
        if trial.hosts.command("corrupted") == "no":
            right(trial)
            raise NotMade("no large message crossed the network after the moment")
        all_fail(trial, r"corrupted on its way \(CRC-32C\)")
        if all(succeeded(rank) for rank in trial.ranks):
            raise Wrong("nobody noticed")


# --- strangers ---


def ports_of_job(trial):
    """Returns the ports on which the job listens on its first host."""
    return set(trial.hosts.listening([r.pid for r in trial.ranks if r.host == 0])) | {trial.port}


def counts(trial):
    """Returns how many connections the trial's flood opened, and its connections per second, which
    include those that were refused: before a rank listens, and after it has ended, its port refuses
    all of them."""
    found = re.search(r"opened (\d+), refused (\d+) in ([\d.]+) s", trial.said)
    if not found:
        raise Wrong("the flood has ended without its counts")
    opened, refused = int(found[1]), int(found[2])
    return opened, (opened + refused) / float(found[3])


class Flood(Fault):
    name = "flood"
    want = "right result during 10,000 connections per second from strangers to all ports of host 0"
    limit = 60
    rate = 10_000
    least = 9_000  # connections per second without which a trial does not count
    compared_with = "flood elsewhere"

    def disturb(self, trial):
        ports = ports_of_job(trial)
        trial.start_stranger("flood", self.rate, trial.hosts.address(0), *ports)
        time.sleep(0.2)

    def check(self, trial):
        right(trial)
        self.check_rate(trial)

    def check_rate(self, trial):
        opened, trial.rate = counts(trial)
        if opened == 0 and trial.moment != "opening":
            raise Wrong("no port of the job accepted a connection of the flood")
        if trial.rate < self.least:
            raise NotMade(f"the flood had only {trial.rate:,.0f} connections per second, "
                          f"and needs {self.least:,}")

    def flood_elsewhere(self, trial):
        port = trial.hosts.new_port()
        trial.start_stranger("accept", port)
        trial.start_stranger("flood", self.rate, "127.0.0.1", port)

    def excuse(self, trial):
        """Makes the same flood without a job."""
        trial.said = ""
        self.flood_elsewhere(trial)
        time.sleep(1)
        trial.clean_up()
        _, rate = counts(trial)
        if rate >= self.least:
            return ""
        return f"without a job too, this machine makes only {rate:,.0f} connections per second"


class FloodElsewhere(Flood):
    """A flood against another process, to compare its times with those of Flood: the flood itself
    also takes processor time."""

    name = "flood elsewhere"
    want = "the same flood against a plain listener: the time to compare with"
    compared_with = ""

    @property
    def planted(self):
        return "flood"

    def disturb(self, trial):
        self.flood_elsewhere(trial)
        time.sleep(0.2)


class FloodKill(Flood):
    name = "flood and kill"
    want = ("during a flood, other ranks end within 2 s (5 s at opening) with one line, which "
            "names only the killed rank")
    environment = {"ATOLL_RENDEZVOUS_TIMEOUT": "3"}
    compared_with = ""

    @property
    def planted(self):
        return "flood"

    def disturb(self, trial):
        super().disturb(trial)
        if trial.moment == "opening":  # the rank may be anywhere between its start and its engine
            (trial.folder / "go").touch()
            time.sleep(trial.delay / 1e6)
        trial.fault_at = time.monotonic()
        os.kill(trial.victim.pid, signal.SIGKILL)

    def check(self, trial):
        if trial.victim.status != -signal.SIGKILL:
            raise Wrong(f"the victim ended with {trial.victim.status}")
        others_name(trial, within(trial))
        self.check_rate(trial)

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
        wanted = "" if trial.moment == "opening" else "token"
        if result.returncode != 1 or wanted not in said or "\n" in said:
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
