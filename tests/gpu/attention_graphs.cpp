// Lets the front end of cuDNN validate the graphs for attention, for several kinds of GPU. Needs
// cuDNN but no GPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include "model/cuda/attention_graphs.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "atoll/error.hpp"

namespace {

using train::cuda::AttentionKey;
using train::cuda::Direction;

// Returns the error of the cuDNN front end for a graph, or "" if the front end accepts the graph.
std::string objection(const AttentionKey& key, Direction direction, bool deterministic, int sm) {
  cudnn_frontend::graph::Graph graph;
  graph.set_sm_version(sm);
  train::cuda::describe_attention(graph, key, direction, deterministic);
  auto status = graph.validate();
  return status.is_good() ? "" : status.get_message();
}

}  // namespace

TEST_CASE("attention of H100 and B200: causal, grouped heads, windows, packed rows") {
  for (const int sm : {90, 100}) {
    for (const bool deterministic : {false, true}) {
      for (const std::int64_t window : {0, 512}) {
        for (const std::int64_t documents : {0, 1, 16}) {
          for (const auto direction : {Direction::forward, Direction::backward}) {
            for (const std::int64_t head_dim : {64, 128}) {
              CAPTURE(sm);
              CAPTURE(deterministic);
              CAPTURE(window);
              CAPTURE(documents);
              CAPTURE(head_dim);
              CAPTURE(static_cast<int>(direction));
              const AttentionKey key{2, 2048, 32, 8, head_dim, window, documents};
              CHECK(objection(key, direction, deterministic, sm) == "");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("attention of A100: whole rows") {
  for (const std::int64_t window : {0, 512}) {
    for (const auto direction : {Direction::forward, Direction::backward}) {
      CAPTURE(window);
      CAPTURE(static_cast<int>(direction));
      CHECK(objection({2, 2048, 32, 8, 128, window, 0}, direction, false, 80) == "");
    }
  }
}

TEST_CASE("cuDNN does not support packed rows in backward on A100") {
  CHECK(objection({2, 2048, 32, 8, 128, 0, 16}, Direction::backward, false, 80) != "");
}

TEST_CASE("from cuDNN 9.25 on, few plans serve all numbers of documents") {
  using train::cuda::planned_documents;
  constexpr std::int64_t tokens = 8192;
  std::set<std::int64_t> plans;
  for (std::int64_t documents = 1; documents <= 512; ++documents) {
    CAPTURE(documents);
    CHECK(planned_documents(documents, tokens, 92400) == documents);
    const std::int64_t planned = planned_documents(documents, tokens, 92500);
    CHECK(planned >= documents);
    CHECK(2 * planned <= 3 * documents);
    plans.insert(planned);
  }
  CHECK(plans.size() == 18);  // 1, 2, 3, 4, 6, 8, 12, ..., 384, 512
  CHECK(planned_documents(tokens, tokens, 92500) == tokens);
  CHECK(planned_documents(8191, tokens, 92500) == tokens);
  CHECK(planned_documents(17, 20, 92500) == 20);  // rounded to 24, limited to 20 tokens
}

TEST_CASE("an invalid graph is refused") {
  CHECK(objection({2, 2048, 32, 7, 128, 0, 0}, Direction::forward, false, 90) != "");
}

int main(int argc, char** argv) {
  try {
    train::cuda::find_cudnn();
  } catch (const atoll::Error& error) {
    fmt::print("skipped: {}\n", error.what());
    return 77;
  }
  if (const auto version = cudnn_frontend::detail::get_backend_version(); version < 91800) {
    fmt::print("skipped: cuDNN {} is too old; this test needs 91800 or later\n", version);
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
