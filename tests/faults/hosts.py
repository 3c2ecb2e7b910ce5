"""The hosts on which the jobs of tests/faults run: this machine as it is, or emulated ones."""

import os
import socket
import subprocess
from pathlib import Path


class PlainHost:
    """This machine, without namespaces. It cannot have faults of networks and disks, which would
    disturb other programs."""

    count = 1
    has_namespaces = False

    def __init__(self, work):
        self.disk = Path(work, "disk")
        self.disk.mkdir(exist_ok=True)
        self._shm_before = set(self._shm_names())
        self._ports = []

    def close(self):
        pass

    def prefix(self, _host):
        return []

    def address(self, _host):
        return "127.0.0.1"

    def new_port(self):
        """Binds a port without listening on it, so that no other process gets the port."""
        port = socket.socket()
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))
        self._ports.append(port)
        return port.getsockname()[1]

    def listening(self, pids):
        return listening_ports("/proc/self/net/tcp", pids)

    def undisturb(self):
        for port in self._ports:
            port.close()
        self._ports = []

    def _shm_names(self):
        return [name for name in os.listdir("/dev/shm") if name.startswith("atoll")]

    def left_in_memory(self):
        return sorted(set(self._shm_names()) - self._shm_before)


class Cluster:
    """Emulated hosts, which the program fault_network makes (network.cpp). Use this class only
    inside new PID and mount namespaces, which remove all mounts and processes when they end."""

    has_namespaces = True

    def __init__(self, count, work, network):
        self.count = count
        self.disk = Path(work, "disk")
        self.disk.mkdir(exist_ok=True)
        if not os.path.ismount(self.disk):
            command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", self.disk]
            subprocess.run(command, check=True)
        self._network = subprocess.Popen([network, str(count)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self.pids = [int(word) for word in self._network.stdout.readline().split()]
        if len(self.pids) != count:
            raise RuntimeError("the emulated hosts did not start")
        self._port = 20000

    def close(self):
        self._network.stdin.close()
        self._network.wait(timeout=10)

    def prefix(self, host):
        target = ["-t", str(self.pids[host]), "--wd=" + os.getcwd()]
        return ["nsenter", *target, "-n", "-u", "-i", "-m", "--"]

    def address(self, host):
        return f"198.18.0.{host + 1}" if self.count > 1 else "127.0.0.1"

    def new_port(self):
        self._port += 1
        return self._port

    def listening(self, pids):
        return listening_ports(f"/proc/{self.pids[0]}/net/tcp", pids)

    def command(self, text):
        """Sends a command of network.cpp to the emulated network, and returns the answer."""
        self._network.stdin.write(text + "\n")
        self._network.stdin.flush()
        answer = self._network.stdout.readline()
        if not answer.endswith("\n"):
            raise RuntimeError("the emulated network has ended")
        return answer.strip()

    def shm(self, host):
        return Path(f"/proc/{self.pids[host]}/root/dev/shm")

    def undisturb(self):
        self.command("clear")
        for folder in [self.disk] + [self.shm(host) for host in range(self.count)]:
            Path(folder, "filler").unlink(missing_ok=True)

    def left_in_memory(self):
        return [name for host in range(self.count) for name in os.listdir(self.shm(host))]


def listening_ports(table, pids):
    """Returns the TCP ports on which the processes listen; `table` is a /proc/PID/net/tcp."""
    sockets = set()
    for pid in pids:
        try:
            for entry in os.scandir(f"/proc/{pid}/fd"):
                sockets.add(os.readlink(entry.path))
        except OSError:
            continue
    ports = set()
    for line in Path(table).read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            ports.add(int(fields[1].split(":")[1], 16))
    return sorted(ports)


def fill(folder):
    """Fills the file system of a folder to the last byte."""
    with open(Path(folder, "filler"), "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
