// Tests of the store with observers: their answers, the requests that they may not send, and that
// the job neither waits for them nor notices when they disconnect.
#include "store/observer.hpp"

#include <condition_variable>
#include <mutex>

#include "atoll/log.hpp"
#include "unit/store/place.hpp"

using namespace atoll_test;
using store::Kind;
using store::Packer;

namespace {

store::Observer observer_of(const Place& place, const std::string& token = "right") {
  return {net::resolve("127.0.0.1", place.port()), token, Clock::now() + 5s};
}

// Becomes an observer with the right token, and then sends the bytes that a test passes.
net::Fd raw_observer(const Place& place) {
  net::Fd socket = place.stranger();
  store::shake_hands(socket.get(), "right", Clock::now() + 5s);
  net::send_all(socket.get(), store::encode_frame(Kind::observe, 0, ""));
  CHECK(store::receive_message(socket.get(), 1024, Clock::now() + 5s).kind == Kind::welcome);
  return socket;
}

std::string question_frame() {
  return store::encode_frame(Kind::observe, 1, Packer().number(300).take());
}

void send_wrong_proof(int socket) {
  store::Handshake handshake(store::Side::rank, "wrong");
  net::send_all(socket, store::encode_frame(Kind::hello, 0, handshake.greeting()));
  const auto challenge = store::receive_message(socket, 1024, Clock::now() + 5s);
  handshake.hear(store::decode_answer(challenge.body).payload);
  net::send_all(socket, store::encode_frame(Kind::proof, 0, handshake.proof()));
}

// Blocks the thread of a store: the store logs that it refuses a process, and the log's sink waits.
class Hold {
 public:
  explicit Hold(const Place& place) {
    atoll::log::set_sink([this](atoll::log::Level, std::string_view) {
      std::unique_lock lock(mutex_);
      is_held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_over_; });
    });
    stranger_ = place.stranger();
    send_wrong_proof(stranger_.get());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_held_; });
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    atoll::log::set_sink({});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_held_ = false, is_over_ = false;
  net::Fd stranger_;
};

}  // namespace

TEST_CASE("after a timeout of rank 0, an observer gets the answer to its next question") {
  Place place(1);
  Rank zero(place, 0);
  std::atomic<int> asked{0};
  zero.client.answer_with([&](auto...) { return std::to_string(++asked); });
  store::Observer observer = observer_of(place);
  {
    const Hold hold(place);
    CHECK(has(thrown(atoll::ErrorCode::timeout, [&] { observer.look(0ms); }),
              "rank 0, which serves the store, does not answer"));
  }
  // The question has reached the store, which answers it late.
  for (int i = 0; i < 100 && asked == 0; ++i) std::this_thread::sleep_for(10ms);
  const int late = asked;
  const auto ranks = observer.look(1s);
  REQUIRE(ranks);
  CHECK(ranks->at(0).text == std::to_string(late + 1));
  zero.client.farewell();
}

TEST_CASE("an observer gets answer, host and pid of each rank, and absent and silent ranks") {
  Place place(4);
  Rank zero(place, 0), one(place, 1);
  const net::Fd stopped = place.hello(2);
  std::string asked;
  zero.client.answer_with([&](std::string_view name, std::string_view) {
    asked = name;
    return std::string("all well");
  });
  store::Observer observer = observer_of(place);
  const auto ranks = observer.look(300ms);
  REQUIRE(ranks);
  REQUIRE(ranks->size() == 4);
  CHECK(asked == store::observer_question);
  CHECK(ranks->at(0).how == store::Answered::How::answered);
  CHECK(ranks->at(0).text == "all well");
  CHECK(ranks->at(0).host == "here");
  CHECK(ranks->at(0).pid == 100);
  CHECK(ranks->at(1).text.empty());
  CHECK(ranks->at(2).how == store::Answered::How::silent);
  CHECK(ranks->at(2).host == "here");
  CHECK(ranks->at(3).how == store::Answered::How::silent);
  CHECK(ranks->at(3).host.empty());
}

TEST_CASE("without the token an observer gets nothing") {
  Place place(2);
  Rank zero(place, 0), one(place, 1);
  CHECK(has(thrown(atoll::ErrorCode::bad_data, [&] { observer_of(place, "wrong"); }),
            "is ATOLL_TOKEN equal on all ranks?"));
  CHECK(answer_to(place, store::encode_frame(Kind::observe, 0, "")).empty());
  zero.client.farewell();
  one.client.farewell();
}

TEST_CASE("an observer can only look: other requests end its connection and change nothing") {
  Place place(1);
  Rank zero(place, 0);
  const std::string key = Packer().number(0).text("key").text("value").take();
  const std::string question = Packer().number(500).text("notice").text("x").take();
  const std::string reason = Packer().text("an observer wants it").take();
  const std::pair<Kind, std::string> requests[] = {
      {Kind::put, key}, {Kind::ask, question}, {Kind::fail, reason}, {Kind::farewell, ""}};
  for (const auto& [kind, body] : requests) {
    const net::Fd observer = raw_observer(place);
    net::send_all(observer.get(), store::encode_frame(kind, 1, body));
    CHECK(is_closed(observer));
  }
  thrown(atoll::ErrorCode::timeout, [&] { zero.client.get("key", 50ms); });
  CHECK_FALSE(zero.failure->get());
  zero.client.farewell();
}

TEST_CASE("an observer may not ask again before it has its answer") {
  Place place(2);
  Rank zero(place, 0);
  const net::Fd silent = place.hello(1);
  const net::Fd observer = raw_observer(place);
  net::send_all(observer.get(), question_frame() + question_frame());
  CHECK(is_closed(observer));
  zero.client.farewell();
}

TEST_CASE("the number of observers is bounded, and an observer that disconnects makes room") {
  Place place(1);
  Rank zero(place, 0);
  std::vector<store::Observer> observers;
  for (std::size_t i = 0; i < store::max_observers; ++i) observers.push_back(observer_of(place));
  CHECK(has(thrown(atoll::ErrorCode::unsupported, [&] { observer_of(place); }),
            "already has 8 observers"));
  observers.pop_back();
  // The store notices the end of a connection in one of the next turns of its loop.
  for (int attempt = 0; attempt < 100 && observers.size() < store::max_observers; ++attempt) {
    try {
      observers.push_back(observer_of(place));
    } catch (const atoll::Error&) {
      std::this_thread::sleep_for(20ms);
    }
  }
  CHECK(observers.size() == store::max_observers);
  CHECK(observers.back().look(300ms));
  zero.client.farewell();
}

TEST_CASE("an observer learns that the job ends, and the job does not wait for it") {
  Place place(1);
  std::optional<store::Observer> observer;
  const net::Fd idle = [&] {
    Rank zero(place, 0);
    observer = observer_of(place);
    net::Fd raw = raw_observer(place);
    CHECK(observer->look(300ms));
    zero.client.farewell();
    return raw;
  }();
  const auto before = Clock::now();
  place.server().finish(10s);
  CHECK(Clock::now() - before < 5s);
  CHECK_FALSE(observer->look(300ms));
  CHECK_FALSE(observer->look(300ms));
}

TEST_CASE("an observer learns the failure of the job, which does not wait for it") {
  Place place(2);
  Rank zero(place, 0), one(place, 1);
  store::Observer observer = observer_of(place);
  one.client.fail("disk on fire");
  CHECK(has(thrown(atoll::ErrorCode::aborted, [&] { observer.look(300ms); }), "disk on fire"));
  CHECK(
      has(thrown(atoll::ErrorCode::aborted, [&] { zero.client.get("key", 10s); }), "disk on fire"));
}
