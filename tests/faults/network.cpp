// network HOSTS: emulates hosts on this machine. A switch in this process joins them and can behave
// like a bad network.
//
// Each host is a process with its own network, host name, System V memory and /dev/shm. The host N
// is called nodeN and has the address 198.18.0.(N + 1) on eth0, a tap device: this process reads
// the Ethernet frames that a host sends, and writes frames to the tap devices of other hosts. The
// kernel's own emulator (netem) is missing in many kernels and cannot repair checksums.
//
// The program first prints the process ids of the hosts in one line. Then it reads one command per
// line and answers each with "ok":
//   clear          ends all disturbances
//   loss P         loses each frame with probability P
//   delay MS       delivers each frame MS milliseconds later
//   cut A B        delivers nothing between the hosts A and B
//   silence A      delivers nothing from or to the host A
//   noise P        flips one bit of a frame with probability P; TCP notices that by its checksum
//   corrupt        flips one bit in the next large TCP segment and repairs the TCP checksum
//   corrupted      answers `yes` if a segment came after the last `corrupt`, otherwise `no`
// The program and its hosts end when the input ends. It needs root.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Frame = std::vector<std::uint8_t>;

constexpr int mtu = 9000;
constexpr std::size_t ethernet_bytes = 14;
constexpr std::size_t most_frame_bytes = mtu + ethernet_bytes;
constexpr std::size_t large_segment = 4096;

void check(bool good, const std::string& what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

// --- the emulated hosts ---

void configure(int fd, ifreq& device, const char* address) {
  auto* const in = reinterpret_cast<sockaddr_in*>(&device.ifr_addr);
  if (address != nullptr) {
    in->sin_family = AF_INET;
    inet_pton(AF_INET, address, &in->sin_addr);
    check(::ioctl(fd, SIOCSIFADDR, &device) == 0, "address");
    inet_pton(AF_INET, "255.255.255.0", &in->sin_addr);
    check(::ioctl(fd, SIOCSIFNETMASK, &device) == 0, "mask");
    device.ifr_mtu = mtu;
    check(::ioctl(fd, SIOCSIFMTU, &device) == 0, "mtu");
    device.ifr_qlen = 10'000;
    check(::ioctl(fd, SIOCSIFTXQLEN, &device) == 0, "queue");
  }
  device.ifr_flags = IFF_UP | IFF_RUNNING;
  check(::ioctl(fd, SIOCSIFFLAGS, &device) == 0, "up");
}

ifreq named(const char* name) {
  ifreq result{};
  std::strncpy(result.ifr_name, name, sizeof result.ifr_name - 1);
  return result;
}

// Moves this process into a new network namespace. Returns the tap descriptor of its eth0, for the
// switch.
int new_network(int host) {
  check(::unshare(CLONE_NEWNET) == 0, "a new network");
  const int tap = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  check(tap >= 0, "/dev/net/tun");
  ifreq eth = named("eth0");
  eth.ifr_flags = IFF_TAP | IFF_NO_PI;
  check(::ioctl(tap, TUNSETIFF, &eth) == 0, "a tap device");
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  check(fd >= 0, "a socket");
  eth = named("eth0");
  configure(fd, eth, ("198.18.0." + std::to_string(host + 1)).c_str());
  ifreq lo = named("lo");
  configure(fd, lo, nullptr);
  ::close(fd);
  return tap;
}

// Starts a process that keeps the namespaces of a host, and returns when they are complete.
pid_t start_host(int host) {
  std::array<int, 2> ready{};
  check(::pipe(ready.data()) == 0, "a pipe");
  const pid_t pid = ::fork();
  check(pid >= 0, "a process");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string name = "node" + std::to_string(host);
    if (::unshare(CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNS) != 0 ||
        ::sethostname(name.c_str(), name.size()) != 0 ||
        ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") != 0 ||
        ::write(ready[1], "x", 1) != 1) {
      ::_exit(1);
    }
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  check(::read(ready[0], &byte, 1) == 1, "namespaces of a host");
  ::close(ready[0]);
  return pid;
}

// --- Ethernet frames ---

// The TCP segment of an IPv4 frame: offsets of the TCP header and of its payload; 0 if the frame is
// anything else.
struct Segment {
  std::size_t header = 0;
  std::size_t payload = 0;
};

Segment segment_of(const Frame& frame) {
  constexpr std::size_t least = ethernet_bytes + 20 + 20;
  if (frame.size() < least || frame[12] != 0x08 || frame[13] != 0x00) return {};
  const std::uint8_t* ip = frame.data() + ethernet_bytes;
  if ((ip[0] >> 4) != 4 || ip[9] != IPPROTO_TCP) return {};
  const std::size_t header = ethernet_bytes + std::size_t(ip[0] & 15) * 4;
  if (header + 20 > frame.size()) return {};
  const std::size_t payload = header + std::size_t(frame[header + 12] >> 4) * 4;
  return payload < frame.size() ? Segment{header, payload} : Segment{};
}

// Flips a bit of the payload. The checksum (RFC 1071) is a ones' complement sum of 16-bit words, so
// the difference of one word repairs it (RFC 1624).
void flip_unnoticed(Frame& frame, const Segment& segment, std::size_t at) {
  at = segment.payload + (at - segment.payload) / 2 * 2;  // words are aligned to the payload
  const auto word = [&](std::size_t i) { return std::uint32_t(frame[i]) << 8 | frame[i + 1]; };
  const std::size_t sum_at = segment.header + 16;
  const std::uint32_t before = word(at);
  frame[at] ^= 0x10;
  std::uint32_t sum = (~word(sum_at) & 0xffff) + (~before & 0xffff) + word(at);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  frame[sum_at] = std::uint8_t(~sum >> 8 & 0xff);
  frame[sum_at + 1] = std::uint8_t(~sum & 0xff);
}

// --- the switch between the hosts ---

class Switch {
 public:
  explicit Switch(std::vector<int> taps) : taps_(std::move(taps)) {}

  // Follows a command and returns the answer.
  std::string command(const std::string& line) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "corrupted") return corrupted_ ? "yes" : "no";
    if (name == "clear") {
      loss_ = noise_ = 0;
      delay_ = {};
      corrupt_ = false;
      cut_.clear();
    } else if (name == "loss") {
      words >> loss_;
    } else if (name == "noise") {
      words >> noise_;
    } else if (name == "delay") {
      int ms = 0;
      words >> ms;
      delay_ = std::chrono::milliseconds(ms);
    } else if (name == "cut") {
      std::size_t a = 0, b = 0;
      words >> a >> b;
      cut(a, b);
    } else if (name == "silence") {
      std::size_t a = 0;
      words >> a;
      for (std::size_t b = 0; b < taps_.size(); ++b) cut(a, b);
    } else if (name == "corrupt") {
      corrupt_ = true;
      corrupted_ = false;
    } else {
      throw std::invalid_argument("unknown command " + line);
    }
    return "ok";
  }

  // Reads frames of a host and sends or queues them.
  void forward(std::size_t from) {
    for (int i = 0; i < 64; ++i) {
      buffer_.resize(most_frame_bytes + 64);
      const ssize_t n = ::read(taps_[from], buffer_.data(), buffer_.size());
      if (n <= 0) return;
      buffer_.resize(static_cast<std::size_t>(n));
      if (buffer_.size() < ethernet_bytes || chance(loss_)) continue;
      disturb(buffer_);
      for (std::size_t to = 0; to < taps_.size(); ++to) {
        if (to == from || cut_.contains(std::minmax(from, to))) continue;
        if (delay_.count() > 0 || !queue_.empty()) {
          queue_.push_back({Clock::now() + delay_, to, buffer_});
        } else {
          send(to, buffer_);
        }
      }
    }
  }

  void send_due() {
    while (!queue_.empty() && queue_.front().due <= Clock::now()) {
      send(queue_.front().to, queue_.front().frame);
      queue_.pop_front();
    }
  }
  // Returns the milliseconds until the next delayed frame is due; -1 if no frame is delayed.
  int wait() const {
    if (queue_.empty()) return -1;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(queue_.front().due - Clock::now());
    return std::max(0, static_cast<int>(left.count()));
  }

 private:
  struct Waiting {
    Clock::time_point due;
    std::size_t to;
    Frame frame;
  };

  void cut(std::size_t a, std::size_t b) { cut_.insert(std::minmax(a, b)); }
  bool chance(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }
  // The switch sends each frame to all hosts; their kernels ignore frames for other Ethernet
  // addresses. If a host cannot take a frame, the frame is lost, as in a real switch.
  void send(std::size_t to, const Frame& frame) {
    [[maybe_unused]] const ssize_t n = ::write(taps_[to], frame.data(), frame.size());
  }
  void disturb(Frame& frame) {
    std::uniform_int_distribution<std::size_t> any(ethernet_bytes, frame.size() - 1);
    if (chance(noise_)) frame[any(random_)] ^= 0x04;
    if (!corrupt_) return;
    const Segment segment = segment_of(frame);
    if (segment.payload == 0 || frame.size() - segment.payload < large_segment) return;
    corrupt_ = false;
    corrupted_ = true;
    flip_unnoticed(frame, segment, segment.payload + (frame.size() - segment.payload) / 2);
  }

  std::vector<int> taps_;
  std::deque<Waiting> queue_;
  Frame buffer_;
  double loss_ = 0, noise_ = 0;
  std::chrono::milliseconds delay_{0};
  bool corrupt_ = false, corrupted_ = false;
  std::set<std::pair<std::size_t, std::size_t>> cut_;
  std::mt19937 random_{std::random_device{}()};
};

void serve(Switch& network, const std::vector<int>& taps) {
  std::string input;
  for (;;) {
    std::vector<pollfd> items{{STDIN_FILENO, POLLIN, 0}};
    for (const int tap : taps) items.push_back({tap, POLLIN, 0});
    ::poll(items.data(), items.size(), network.wait());
    network.send_due();
    for (std::size_t i = 0; i < taps.size(); ++i)
      if (items[i + 1].revents != 0) network.forward(i);
    if (items[0].revents == 0) continue;
    std::array<char, 256> part{};
    const ssize_t n = ::read(STDIN_FILENO, part.data(), part.size());
    if (n <= 0) return;
    input.append(part.data(), static_cast<std::size_t>(n));
    for (std::size_t end; (end = input.find('\n')) != std::string::npos;) {
      std::cout << network.command(input.substr(0, end)) << std::endl;
      input.erase(0, end + 1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int hosts = argc == 2 ? std::atoi(argv[1]) : 0;
  if (hosts < 1 || hosts > 200) return 2;
  try {
    std::vector<int> taps;
    std::vector<pid_t> pids;
    for (int i = 0; i < hosts; ++i) {
      taps.push_back(new_network(i));
      pids.push_back(start_host(i));
    }
    ::setpriority(PRIO_PROCESS, 0, -10);  // busy hosts must not delay frames
    for (const pid_t pid : pids) std::cout << pid << ' ';
    std::cout << std::endl;
    Switch network(taps);
    serve(network, taps);
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
  } catch (const std::exception& error) {
    std::cerr << "network: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
}
