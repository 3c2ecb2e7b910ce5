#include "muon.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"

namespace muon {
namespace {

namespace fsdp = atoll::fsdp;
using atoll::Stream;
using SendRecv = atoll::Communicator::SendRecv;

// A matrix that Muon updates. All ranks list the same matrices in the same order.
struct Matrix {
  std::int64_t rows, columns;
  int owner = 0;  // rank in the shard axis that makes the matrix orthogonal

  std::uint64_t elements() const { return static_cast<std::uint64_t>(rows * columns); }
  std::int64_t side() const { return std::min(rows, columns); }  // of the products X X^T or X^T X
};

// Consecutive elements of a matrix, and their position in a buffer of messages.
struct Piece {
  std::uint64_t first, count, offset;
};

// This rank's part of a matrix that Muon updates.
struct HiddenPart {
  std::size_t matrix;
  fsdp::Segment segment;
  float* momentum;
  bool decays;
  std::uint64_t offset = 0;  // position in Impl::mine
};

// This rank's part of a parameter that AdamW updates.
struct OtherPart {
  fsdp::Segment segment;
  float *moment1, *moment2;
  bool decays;
};

// The elements of a buffer that are exchanged with one rank.
struct Message {
  std::uint64_t first, count;
};

// The shard axis of the engine: strategies shard either over the shard axis of the mesh or over all
// ranks of the engine, which are those along the engine's two axes.
atoll::Axis shard_axis(const fsdp::Engine& engine, const atoll::Mesh& mesh) {
  const fsdp::EngineAxes& axes = engine.options().axes;
  const atoll::Mesh own = mesh.has_axis(axes.replicate) ? mesh.sub({axes.replicate, axes.shard})
                                                        : mesh.sub({axes.shard});
  const bool inside = engine.sharding().shard == own.axis(axes.shard).size();
  return own.axis(inside ? std::string_view(axes.shard) : "world");
}

// Numbers that tasks on the compute stream read and write.
struct Figures {
  double squares = 0;  // sum of the squares of this rank's gradients, then of all gradients
  float norm = 0;
  float factor = 1;  // clip factor; NaN when the step changes nothing
  std::int64_t steps = 0;
};

}  // namespace

void multiply_with_loops(Stream& stream, const Product& product) {
  stream.enqueue([p = product] {
    const bool a_plain = p.a_layout == Layout::plain, b_plain = p.b_layout == Layout::plain;
    for (std::int64_t i = 0; i < p.m; ++i) {
      float* const row = p.c + i * p.n;
      std::fill_n(row, p.n, 0.0f);
      for (std::int64_t l = 0; l < p.k; ++l) {
        const float x = a_plain ? p.a[i * p.k + l] : p.a[l * p.m + i];
        for (std::int64_t j = 0; j < p.n; ++j) {
          row[j] += x * (b_plain ? p.b[l * p.n + j] : p.b[j * p.k + l]);
        }
      }
    }
  });
}

struct Muon::Impl {
  Impl(fsdp::Engine& engine_, const atoll::Mesh& mesh, Options options_);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void find_parts();
  void choose_owners();
  std::vector<Piece> exchange_places();
  void plan_messages();
  void allocate();

  void enqueue_step(float learning_rate, Stream& compute);
  void enqueue_norm(Stream& compute);
  void exchange(Stream& compute, SendRecv::Kind mine_is);
  void orthogonalize(std::size_t matrix, Stream& compute);
  // These functions run as tasks of the compute stream.
  void measure();
  void update_momenta();
  void update_hidden(float learning_rate);
  void update_others(float learning_rate);

  int ranks() const { return comm ? comm->size() : 1; }
  int rank() const { return comm ? comm->rank() : 0; }
  float* floats(const atoll::Buffer& buffer) const { return static_cast<float*>(buffer.data()); }
  // A rank without a communicator uses `mine` as `whole` too.
  float* whole_data() const { return floats(comm ? whole : mine); }

  fsdp::Engine& engine;
  Options options;
  std::optional<atoll::Communicator> comm;  // of the shard axis; absent for one shard
  std::vector<Matrix> matrices;
  std::vector<HiddenPart> hidden;
  std::vector<OtherPart> others;
  // For each owned matrix, its parts with their offsets in `whole`.
  std::vector<std::vector<Piece>> pieces;
  // Messages with each rank: parts of its matrices in `mine`, and its parts of owned matrices in
  // `whole`.
  std::vector<Message> of_mine, of_whole;
  atoll::Buffer mine;   // this rank's parts of all matrices, by owner
  atoll::Buffer whole;  // the owned matrices, as the parts arrive
  atoll::Buffer x, y;   // the matrix that becomes orthogonal, and a product of its size
  atoll::Buffer gram, gram2;
  std::uint64_t bytes = 0;
  Figures figures;
  atoll::Event done;  // happens when the last step is complete
};

Muon::Impl::Impl(fsdp::Engine& engine_, const atoll::Mesh& mesh, Options options_)
    : engine(engine_), options(std::move(options_)) {
  if (engine.device().kind() != atoll::DeviceKind::host) {
    throw atoll::Error(atoll::ErrorCode::unsupported,
                       "Muon: updates parameters only on CPUs, and the device of the engine is " +
                           std::string(engine.device().name()));
  }
  if (engine.sharding().shard > 1) {
    comm.emplace(atoll::Communicator::open(
        shard_axis(engine, mesh),
        {.name = "muon", .backend = engine.options().backend, .device = engine.device()}));
  }
  engine.add_state("momentum");  // for other parameters, the first moment of AdamW
  engine.add_state("second_moment");
  find_parts();
  choose_owners();
  plan_messages();
  allocate();
}

Muon::Impl::~Impl() {
  try {
    done.synchronize();
  } catch (const std::exception&) {
    // The failure of the stream has reached the caller through another call.
  }
  engine.memory().optimizer -= bytes;
}

void Muon::Impl::find_parts() {
  const auto is_hidden = [&](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
    if (!param.trainable) return false;
    if (!options.is_hidden) return param.shape.size() == 2;
    if (!options.is_hidden(unit, param)) return false;
    if (param.shape.size() == 2) return true;
    throw atoll::Error(atoll::ErrorCode::invalid_argument,
                       "Muon: parameter " + param.name + " of unit " + unit.name() + " has " +
                           std::to_string(param.shape.size()) + " dimensions, not 2");
  };
  std::vector<const fsdp::ParamSpec*> params;  // of each matrix
  for (const auto& unit : engine.units()) {
    for (const auto& param : unit->params()) {
      if (!is_hidden(*unit, param)) continue;
      matrices.push_back({param.shape[0], param.shape[1]});
      params.push_back(&param);
    }
  }
  for (const fsdp::Segment& segment : engine.segments()) {
    if (segment.gradient.count == 0) continue;
    auto* const momentum = engine.state(segment, "momentum").as<float>();
    auto* const second = engine.state(segment, "second_moment").as<float>();
    const bool decays = options.decay == fsdp::Decay::all || segment.param->shape.size() >= 2;
    const auto found = std::find(params.begin(), params.end(), segment.param);
    if (found == params.end()) {
      others.push_back({segment, momentum, second, decays});
    } else {
      const auto matrix = static_cast<std::size_t>(found - params.begin());
      hidden.push_back({matrix, segment, momentum, decays});
    }
  }
}

// Assigns the matrices in descending order of work, each to the rank with the least work so far.
void Muon::Impl::choose_owners() {
  const auto work = [&](std::size_t k) {
    return static_cast<double>(matrices[k].elements()) * static_cast<double>(matrices[k].side());
  };
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return work(a) > work(b); });
  std::vector<double> loads(static_cast<std::size_t>(ranks()), 0.0);
  for (const std::size_t k : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    matrices[k].owner = static_cast<int>(least - loads.begin());
    *least += work(k);
  }
}

// Returns the part of each matrix on each rank: element r * matrices.size() + k of the result is
// the part of matrix k on rank r.
std::vector<Piece> Muon::Impl::exchange_places() {
  std::vector<std::int64_t> local(2 * matrices.size(), 0);
  for (const HiddenPart& part : hidden) {
    local[2 * part.matrix] = static_cast<std::int64_t>(part.segment.first);
    local[2 * part.matrix + 1] = static_cast<std::int64_t>(part.segment.gradient.count);
  }
  std::vector<std::int64_t> all(local.size() * static_cast<std::size_t>(ranks()));
  if (comm) {
    auto stream = engine.device().stream({.name = "muon"});
    comm->all_gather(local, all, stream).synchronize();
  } else {
    all = local;
  }
  std::vector<Piece> places;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    places.push_back(
        {static_cast<std::uint64_t>(all[i]), static_cast<std::uint64_t>(all[i + 1]), 0});
  }
  return places;
}

// Lays out the buffers so that all elements for one rank are consecutive, and form one message.
void Muon::Impl::plan_messages() {
  const std::vector<Piece> places = exchange_places();
  const auto place = [&](int rank_, std::size_t k) -> const Piece& {
    return places[static_cast<std::size_t>(rank_) * matrices.size() + k];
  };
  pieces.resize(matrices.size());
  std::uint64_t mine_end = 0, whole_end = 0;
  for (int peer = 0; peer < ranks(); ++peer) {
    const std::uint64_t mine_begin = mine_end, whole_begin = whole_end;
    for (HiddenPart& part : hidden) {  // in the order of the matrices
      if (matrices[part.matrix].owner != peer) continue;
      part.offset = mine_end;
      mine_end += part.segment.gradient.count;
    }
    for (std::size_t k = 0; k < matrices.size(); ++k) {
      const Piece& theirs = place(peer, k);
      if (matrices[k].owner != rank() || theirs.count == 0) continue;
      pieces[k].push_back({theirs.first, theirs.count, whole_end});
      whole_end += theirs.count;
    }
    of_mine.push_back({mine_begin, mine_end - mine_begin});
    of_whole.push_back({whole_begin, whole_end - whole_begin});
  }
}

void Muon::Impl::allocate() {
  std::uint64_t largest = 0, side = 0;
  for (const Matrix& matrix : matrices) {
    if (matrix.owner != rank()) continue;
    largest = std::max(largest, matrix.elements());
    side = std::max(side, static_cast<std::uint64_t>(matrix.side()));
  }
  const auto make = [&](std::uint64_t count) {
    atoll::Buffer buffer = engine.device().allocate(count * sizeof(float));
    if (count > 0) std::memset(buffer.data(), 0, buffer.bytes());
    bytes += buffer.bytes();
    return buffer;
  };
  const auto total = [](const std::vector<Message>& messages) {
    return messages.back().first + messages.back().count;
  };
  mine = make(total(of_mine));
  if (comm) whole = make(total(of_whole));
  x = make(largest);
  y = make(largest);
  gram = make(side * side);
  gram2 = make(side * side);
  engine.memory().optimizer += bytes;
}

void Muon::Impl::enqueue_norm(Stream& compute) {
  compute.enqueue([this] {
    figures.squares = 0;
    const auto add = [&](const fsdp::Segment& segment) {
      double sum = 0;
      for (const float g : std::span(segment.gradient.as<float>(), segment.gradient.count)) {
        sum += static_cast<double>(g) * static_cast<double>(g);
      }
      figures.squares += sum;
    };
    for (const HiddenPart& part : hidden) add(part.segment);
    for (const OtherPart& part : others) add(part.segment);
  });
  if (comm) {
    const atoll::View squares(&figures.squares, 1, atoll::DType::f64);
    comm->all_reduce(squares, squares, atoll::ReduceOp::sum, compute).wait(compute);
  }
  compute.enqueue([this] { measure(); });
}

void Muon::Impl::measure() {
  figures.norm = static_cast<float>(std::sqrt(figures.squares));
  const bool clips = options.max_norm > 0 && figures.norm > options.max_norm;
  figures.factor = clips ? options.max_norm / figures.norm : 1.0f;
  if (!std::isfinite(figures.norm)) figures.factor = std::nanf("");
  if (std::isfinite(figures.norm)) ++figures.steps;
}

// Computes the momentum with Nesterov's look-ahead, g + momentum * m, into `mine`.
void Muon::Impl::update_momenta() {
  if (std::isnan(figures.factor)) return;
  for (const HiddenPart& part : hidden) {
    const float* const gradient = part.segment.gradient.as<float>();
    float* const out = floats(mine) + part.offset;
    for (std::uint64_t i = 0; i < part.segment.gradient.count; ++i) {
      const float g = gradient[i] * figures.factor;
      part.momentum[i] = options.momentum * part.momentum[i] + g;
      out[i] = g + options.momentum * part.momentum[i];
    }
  }
}

// Sends the parts in `mine` to the owners, or receives them back from the owners.
void Muon::Impl::exchange(Stream& compute, SendRecv::Kind mine_is) {
  if (!comm) return;
  const bool gathers = mine_is == SendRecv::Kind::send;
  const auto whole_is = gathers ? SendRecv::Kind::recv : SendRecv::Kind::send;
  std::vector<SendRecv> operations;
  const auto add = [&](SendRecv::Kind kind, const atoll::Buffer& buffer, Message message,
                       int peer) {
    if (message.count == 0) return;
    operations.push_back(
        {kind, buffer.view(atoll::DType::f32).part(message.first, message.count), peer});
  };
  for (int peer = 0; peer < ranks(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    add(mine_is, mine, of_mine[index], peer);
    add(whole_is, whole, of_whole[index], peer);
  }
  comm->group(operations, compute).wait(compute);
}

// Newton-Schulz iteration X <- a X + (b A + c A A) X with A = X X^T, whose five steps bring all
// singular values near 1. Coefficients and number of steps are those of Keller Jordan. A matrix
// with more rows than columns uses A = X^T X from the right instead, which is smaller.
void Muon::Impl::orthogonalize(std::size_t k, Stream& compute) {
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  constexpr int iterations = 5;
  const Matrix& matrix = matrices[k];
  const std::int64_t side = matrix.side(), rows = matrix.rows, columns = matrix.columns;
  const bool wide = rows <= columns;
  compute.enqueue([this, k, n = matrix.elements()] {
    for (const auto& [first, count, offset] : pieces[k]) {
      std::memcpy(floats(x) + first, whole_data() + offset, count * sizeof(float));
    }
    double squares = 0;
    for (const float value : std::span(floats(x), n)) {
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const auto scale = static_cast<float>(1 / (std::sqrt(squares) + 1e-7));
    for (float& value : std::span(floats(x), n)) value *= scale;
  });
  const Layout first = wide ? Layout::plain : Layout::transposed;
  const Layout second = wide ? Layout::transposed : Layout::plain;
  for (int i = 0; i < iterations; ++i) {
    options.multiply(compute, {side, side, std::max(rows, columns), first, second, floats(x),
                               floats(x), floats(gram)});
    options.multiply(compute, {side, side, side, Layout::plain, Layout::plain, floats(gram),
                               floats(gram), floats(gram2)});
    compute.enqueue([this, n = side * side] {
      for (std::int64_t e = 0; e < n; ++e) {
        floats(gram)[e] = b * floats(gram)[e] + c * floats(gram2)[e];
      }
    });
    options.multiply(compute,
                     {rows, columns, side, Layout::plain, Layout::plain,
                      wide ? floats(gram) : floats(x), wide ? floats(x) : floats(gram), floats(y)});
    compute.enqueue([this, n = rows * columns] {
      for (std::int64_t e = 0; e < n; ++e) floats(x)[e] = a * floats(x)[e] + floats(y)[e];
    });
  }
  compute.enqueue([this, k] {
    for (const auto& [first_element, count, offset] : pieces[k]) {
      std::memcpy(whole_data() + offset, floats(x) + first_element, count * sizeof(float));
    }
  });
}

void Muon::Impl::update_hidden(float learning_rate) {
  if (std::isnan(figures.factor)) return;
  for (const HiddenPart& part : hidden) {
    const Matrix& matrix = matrices[part.matrix];
    const float rate =
        learning_rate * 0.2f * std::sqrt(static_cast<float>(std::max(matrix.rows, matrix.columns)));
    const float keep = part.decays ? 1 - learning_rate * options.weight_decay : 1.0f;
    const float* const update = floats(mine) + part.offset;
    float* const w = part.segment.values.as<float>();
    for (std::uint64_t i = 0; i < part.segment.values.count; ++i) {
      w[i] = w[i] * keep - rate * update[i];
    }
  }
}

void Muon::Impl::update_others(float learning_rate) {
  if (std::isnan(figures.factor)) return;
  const auto correction = [&](float beta) {
    return 1 - std::pow(static_cast<double>(beta), static_cast<double>(figures.steps));
  };
  const auto rate =
      static_cast<float>(static_cast<double>(learning_rate) / correction(options.beta1));
  const auto root = static_cast<float>(1 / std::sqrt(correction(options.beta2)));
  for (const OtherPart& part : others) {
    const float keep = part.decays ? 1 - learning_rate * options.weight_decay : 1.0f;
    const float* const gradient = part.segment.gradient.as<float>();
    float* const w = part.segment.values.as<float>();
    for (std::uint64_t i = 0; i < part.segment.values.count; ++i) {
      const float g = gradient[i] * figures.factor;
      float &m = part.moment1[i], &v = part.moment2[i];
      m = options.beta1 * m + (1 - options.beta1) * g;
      v = options.beta2 * v + (1 - options.beta2) * g * g;
      w[i] = w[i] * keep - rate * m / (std::sqrt(v) * root + options.epsilon);
    }
  }
}

void Muon::Impl::enqueue_step(float learning_rate, Stream& compute) {
  engine.wait_gradients(compute);
  enqueue_norm(compute);
  compute.enqueue([this] { update_momenta(); });
  exchange(compute, SendRecv::Kind::send);
  for (std::size_t k = 0; k < matrices.size(); ++k) {
    if (matrices[k].owner == rank() && matrices[k].elements() > 0) orthogonalize(k, compute);
  }
  exchange(compute, SendRecv::Kind::recv);
  compute.enqueue([this, learning_rate] {
    update_hidden(learning_rate);
    update_others(learning_rate);
  });
  engine.parameters_changed(compute);
}

Muon::Muon(fsdp::Engine& engine, const atoll::Mesh& mesh, Options options)
    : impl_(std::make_unique<Impl>(engine, mesh, std::move(options))) {}
Muon::Muon(Muon&&) noexcept = default;
Muon::~Muon() = default;

void Muon::step(float learning_rate, Stream& compute) {
  Impl* const impl = impl_.get();
  try {
    impl->enqueue_step(learning_rate, compute);
  } catch (...) {
    impl->done = compute.record();  // a part of the step may still use the optimizer's memory
    throw;
  }
  impl->done = compute.record();
}

float Muon::grad_norm() const {
  impl_->done.synchronize();
  return impl_->figures.norm;
}

std::int64_t Muon::steps() const {
  impl_->done.synchronize();
  return impl_->figures.steps;
}

void Muon::set_steps(std::int64_t steps) {
  impl_->done.synchronize();
  impl_->figures.steps = steps;
}

}  // namespace muon
