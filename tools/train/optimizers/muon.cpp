#include "muon.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "atoll/communicator.hpp"
#include "message_plan.hpp"

namespace muon {
namespace {

namespace fsdp = atoll::fsdp;
using atoll::Stream;
using SendRecv = atoll::Communicator::SendRecv;

// This rank's part of a matrix that Muon updates.
struct HiddenPart {
  std::size_t matrix;
  fsdp::Segment segment;
  atoll::View momentum;
  fsdp::ParamSettings settings;
};

// This rank's part of a parameter that AdamW updates.
struct OtherPart {
  fsdp::Segment segment;
  atoll::View moment1, moment2;
  fsdp::ParamSettings settings;
};

// Returns the axis over which the engine shards or replicates: the axis `name` of the mesh if it
// has `size` ranks, otherwise the axis of all ranks of the engine.
atoll::Axis axis_of(const fsdp::Engine& engine, const atoll::Mesh& mesh, std::string_view name,
                    int size) {
  const fsdp::EngineAxes& axes = engine.options().axes;
  const atoll::Mesh own = mesh.has_axis(axes.replicate) ? mesh.sub({axes.replicate, axes.shard})
                                                        : mesh.sub({axes.shard});
  const bool is_axis = own.has_axis(name) && own.axis(name).size() == size;
  return own.axis(is_axis ? name : "world");
}

// Fills in the arithmetic of a CPU, or throws an error for a GPU without arithmetic.
Options completed(Options options, const fsdp::Engine& engine) {
  const bool on_host = engine.device().kind() == atoll::DeviceKind::cpu;
  if (on_host && !options.arithmetic) options.arithmetic = cpu_arithmetic();
  if (on_host && !options.multiply) options.multiply = multiply_with_loops;
  if (!options.arithmetic || !options.multiply) {
    throw atoll::Error(atoll::ErrorCode::unsupported,
                       "Muon: needs Options::arithmetic and Options::multiply for " +
                           std::string(engine.device().name()) +
                           ", such as cuda_arithmetic() and matrix products by cuBLAS");
  }
  if (options.products != atoll::DType::f32 && options.products != atoll::DType::bf16) {
    throw atoll::Error(atoll::ErrorCode::invalid_argument,
                       "Muon: products of " + std::string(name(options.products)) +
                           " are not supported: use f32 or bf16");
  }
  return options;
}

fsdp::OptimizerOptions group_options(const Options& options) {
  return {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .weight_decay = options.weight_decay,
          .decay = options.decay,
          .groups = options.groups};
}

atoll::View part_of(const atoll::Buffer& buffer, const Message& message) {
  return buffer.view(atoll::DType::f32).part(message.first, message.count);
}

void add(std::vector<SendRecv>& operations, const SendRecv& operation) {
  if (operation.data.count > 0) operations.push_back(operation);
}

// The factor of weights for decoupled weight decay.
float kept(float rate, const fsdp::ParamSettings& settings) {
  return 1 - rate * settings.weight_decay;
}

}  // namespace

struct Muon::Impl {
  Impl(fsdp::Engine& engine_, const atoll::Mesh& mesh, Options options_);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void find_parts();
  std::vector<Piece> exchange_places();
  void allocate();
  void push_figures();

  void enqueue_step(float learning_rate, Stream& compute);
  void enqueue_norm(Stream& compute);
  void exchange(Stream& compute, SendRecv::Kind mine_is);
  void share_updates(Stream& compute);
  void orthogonalize(std::size_t matrix, Stream& compute);
  void update_momenta(Stream& compute);
  void update_hidden(float learning_rate, Stream& compute);
  void update_others(float learning_rate, Stream& compute);

  int ranks() const { return comm ? comm->size() : 1; }
  int rank() const { return comm ? comm->rank() : 0; }
  int replica_count() const { return replicas ? replicas->size() : 1; }
  int replica() const { return replicas ? replicas->rank() : 0; }
  Position position() const { return {replica_count(), ranks(), replica(), rank()}; }
  // Without a communicator (one shard), `mine` holds whole matrices and serves as `whole` too.
  atoll::View whole_view() const { return (comm ? whole : mine).view(atoll::DType::f32); }
  Figures* figures() const { return static_cast<Figures*>(figures_memory.data()); }
  Figures& known() const { return *static_cast<Figures*>(known_memory.data()); }

  fsdp::Engine& engine;
  Options options;
  std::optional<atoll::Communicator> comm;      // on the shard axis; absent for one shard
  std::optional<atoll::Communicator> replicas;  // on the replicate axis; absent for one replica
  std::vector<Matrix> matrices;
  std::vector<HiddenPart> hidden;
  std::vector<OtherPart> others;
  MessagePlan plan;
  atoll::Buffer mine, whole;  // the two buffers of MessagePlan
  atoll::Buffer x, y;         // the matrix that becomes orthogonal, and a product of its size
  atoll::Buffer gram, gram2;
  std::uint64_t bytes = 0;
  std::vector<atoll::ConstView> gradients;  // gradients of all segments, for the norm
  atoll::Buffer figures_memory;             // Figures on the device
  atoll::Buffer known_memory;               // Figures in CPU memory, valid once `done` is complete
  atoll::Event done;                        // happens when the last step is complete
};

Muon::Impl::Impl(fsdp::Engine& engine_, const atoll::Mesh& mesh, Options options_)
    : engine(engine_), options(completed(std::move(options_), engine_)) {
  const atoll::MeshShape sizes = engine.sharding();
  const fsdp::EngineAxes& axes = engine.options().axes;
  const auto open = [&](std::string_view axis, int size, std::string name) {
    return atoll::Communicator::open(axis_of(engine, mesh, axis, size),
                                     {.name = std::move(name),
                                      .backend = engine.options().backend,
                                      .device = engine.device(),
                                      .levels = false});
  };
  if (sizes.shard > 1) comm.emplace(open(axes.shard, sizes.shard, "muon"));
  if (sizes.replicate > 1) replicas.emplace(open(axes.replicate, sizes.replicate, "muon replicas"));
  engine.add_state("momentum");  // for parameters of AdamW: the first moment
  engine.add_state("second_moment");
  find_parts();
  choose_owners(matrices, position());
  plan = plan_messages(matrices, exchange_places(), position());
  allocate();
}

Muon::Impl::~Impl() {
  try {
    done.synchronize();
  } catch (const std::exception&) {
    // The stream has failed; the caller learns of it from another call.
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
  const auto all_settings = fsdp::use_groups(engine, group_options(options));
  std::map<const fsdp::ParamSpec*, fsdp::ParamSettings> settings;
  std::map<const fsdp::ParamSpec*, std::size_t> matrix_of;
  for (const auto& unit : engine.units()) {
    for (const auto& param : unit->params()) {
      settings.emplace(&param, all_settings[settings.size()]);
      if (!is_hidden(*unit, param)) continue;
      matrix_of.emplace(&param, matrices.size());
      matrices.push_back({param.shape[0], param.shape[1]});
    }
  }
  for (const fsdp::Segment& segment : engine.segments()) {
    if (segment.gradient.count == 0) continue;
    const atoll::View momentum = engine.state(segment, "momentum");
    const atoll::View second = engine.state(segment, "second_moment");
    gradients.push_back(segment.gradient);
    const auto found = matrix_of.find(segment.param);
    if (found == matrix_of.end()) {
      others.push_back({segment, momentum, second, settings.at(segment.param)});
    } else {
      hidden.push_back({found->second, segment, momentum, settings.at(segment.param)});
    }
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
  if (comm && !local.empty()) {
    const std::size_t sent = local.size() * sizeof(std::int64_t);
    const atoll::Buffer from = engine.device().allocate(sent);
    const atoll::Buffer to = engine.device().allocate(all.size() * sizeof(std::int64_t));
    auto stream = engine.device().stream({.name = "muon"});
    stream.copy(from.data(), local.data(), sent);
    comm->all_gather(from.view(atoll::DType::i64), to.view(atoll::DType::i64), stream).wait(stream);
    stream.copy(all.data(), to.data(), to.bytes());
    stream.synchronize();
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

void Muon::Impl::allocate() {
  std::uint64_t largest = 0, side = 0;
  for (const Matrix& matrix : matrices) {
    if (!position().owns(matrix)) continue;
    largest = std::max(largest, matrix.elements());
    side = std::max(side, static_cast<std::uint64_t>(matrix.side()));
  }
  auto stream = engine.device().stream({.name = "muon"});
  const auto make = [&](std::uint64_t count, atoll::DType dtype) {
    atoll::Buffer buffer = engine.device().allocate(count * size_of(dtype));
    if (count > 0) stream.zero(buffer.data(), buffer.bytes());
    bytes += buffer.bytes();
    return buffer;
  };
  const auto total = [](const std::vector<Message>& messages) {
    return messages.back().first + messages.back().count;
  };
  mine = make(total(plan.of_replica), atoll::DType::f32);
  if (comm) whole = make(total(plan.of_whole), atoll::DType::f32);
  x = make(largest, options.products);
  y = make(largest, options.products);
  gram = make(side * side, options.products);
  gram2 = make(side * side, options.products);
  figures_memory = make(sizeof(Figures) / sizeof(double), atoll::DType::f64);
  stream.synchronize();
  known_memory = engine.device().allocate_staging(sizeof(Figures));
  known() = {0, 0, 1, 0};
  push_figures();
  engine.memory().optimizer += bytes;
}

// Copies the figures from CPU memory to the device, and waits for the copy.
void Muon::Impl::push_figures() {
  auto stream = engine.device().stream({.name = "muon"});
  stream.copy(figures_memory.data(), known_memory.data(), sizeof(Figures));
  stream.synchronize();
}

void Muon::Impl::enqueue_norm(Stream& compute) {
  options.arithmetic->sum_squares(compute, gradients, figures());
  if (comm) {
    const atoll::View squares(&figures()->squares, 1, atoll::DType::f64);
    comm->all_reduce(squares, squares, atoll::ReduceOp::sum, compute).wait(compute);
  }
  options.arithmetic->measure(compute, figures(), options.max_norm);
}

// Computes the momentum with Nesterov's look-ahead into `mine`.
void Muon::Impl::update_momenta(Stream& compute) {
  for (const HiddenPart& part : hidden) {
    const atoll::ConstView gradient = part.segment.gradient;
    options.arithmetic->momentum(
        compute, {gradient, part.momentum,
                  mine.view(atoll::DType::f32).part(plan.offsets[part.matrix], gradient.count),
                  options.momentum, figures()});
  }
}

// Sends the parts in `mine` to the owners, or receives them back from the owners.
void Muon::Impl::exchange(Stream& compute, SendRecv::Kind mine_is) {
  if (!comm) return;
  const bool gathers = mine_is == SendRecv::Kind::send;
  const auto whole_is = gathers ? SendRecv::Kind::recv : SendRecv::Kind::send;
  std::vector<SendRecv> operations;
  for (int peer = 0; peer < ranks(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    add(operations, {mine_is, part_of(mine, plan.of_mine[index]), peer});
    add(operations, {whole_is, part_of(whole, plan.of_whole[index]), peer});
  }
  comm->group(operations, compute).wait(compute);
}

// Sends the updates of the matrices that this replica owns to the other replicas, and receives the
// updates of their matrices.
void Muon::Impl::share_updates(Stream& compute) {
  if (!replicas) return;
  std::vector<SendRecv> operations;
  for (int peer = 0; peer < replica_count(); ++peer) {
    if (peer == replica()) continue;
    const auto own = static_cast<std::size_t>(replica()), other = static_cast<std::size_t>(peer);
    add(operations, {SendRecv::Kind::send, part_of(mine, plan.of_replica[own]), peer});
    add(operations, {SendRecv::Kind::recv, part_of(mine, plan.of_replica[other]), peer});
  }
  replicas->group(operations, compute).wait(compute);
}

// Newton-Schulz iteration X <- a X + (b A + c A A) X with A = X X^T, whose five steps bring all
// singular values near 1. Coefficients and number of steps are those of Keller Jordan. A matrix
// with more rows than columns uses A = X^T X from the right instead, which is smaller.
void Muon::Impl::orthogonalize(std::size_t k, Stream& compute) {
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  constexpr int iterations = 5;
  Arithmetic& arithmetic = *options.arithmetic;
  const Matrix& matrix = matrices[k];
  const std::int64_t side = matrix.side(), rows = matrix.rows, columns = matrix.columns;
  const bool wide = rows <= columns;
  const auto part = [&](const atoll::Buffer& buffer, std::int64_t count) {
    return buffer.view(options.products).part(0, static_cast<std::uint64_t>(count));
  };
  const atoll::View matrix_x = part(x, rows * columns), matrix_y = part(y, rows * columns);
  const atoll::View square = part(gram, side * side), square2 = part(gram2, side * side);
  for (const auto& [first, count, offset] : plan.pieces[k]) {
    arithmetic.convert(compute, matrix_x.part(first, count), whole_view().part(offset, count));
  }
  arithmetic.normalize(compute, matrix_x);
  const Layout first = wide ? Layout::plain : Layout::transposed;
  const Layout second = wide ? Layout::transposed : Layout::plain;
  for (int i = 0; i < iterations; ++i) {
    options.multiply(
        compute, {side, side, std::max(rows, columns), first, second, matrix_x, matrix_x, square});
    options.multiply(compute,
                     {side, side, side, Layout::plain, Layout::plain, square, square, square2});
    arithmetic.combine(compute, square, b, square2, c);
    options.multiply(compute, {rows, columns, side, Layout::plain, Layout::plain,
                               wide ? square : matrix_x, wide ? matrix_x : square, matrix_y});
    arithmetic.combine(compute, matrix_x, a, matrix_y, 1);
  }
  for (const auto& [begin, count, offset] : plan.pieces[k]) {
    arithmetic.convert(compute, whole_view().part(offset, count), matrix_x.part(begin, count));
  }
}

void Muon::Impl::update_hidden(float learning_rate, Stream& compute) {
  for (const HiddenPart& part : hidden) {
    const Matrix& matrix = matrices[part.matrix];
    const float scaled = learning_rate * part.settings.learning_rate_scale;
    const float rate =
        scaled * 0.2f * std::sqrt(static_cast<float>(std::max(matrix.rows, matrix.columns)));
    const atoll::View weights = part.segment.values;
    options.arithmetic->update(
        compute,
        {weights, mine.view(atoll::DType::f32).part(plan.offsets[part.matrix], weights.count), rate,
         kept(scaled, part.settings), figures()});
  }
}

void Muon::Impl::update_others(float learning_rate, Stream& compute) {
  for (const OtherPart& part : others) {
    const fsdp::ParamSettings& settings = part.settings;
    const float rate = learning_rate * settings.learning_rate_scale;
    options.arithmetic->adamw(compute, {part.segment.values, part.segment.gradient, part.moment1,
                                        part.moment2, rate, kept(rate, settings), settings.beta1,
                                        settings.beta2, options.epsilon, figures()});
  }
}

void Muon::Impl::enqueue_step(float learning_rate, Stream& compute) {
  engine.wait_gradients(compute);
  enqueue_norm(compute);
  update_momenta(compute);
  exchange(compute, SendRecv::Kind::send);
  for (std::size_t k = 0; k < matrices.size(); ++k) {
    if (position().owns(matrices[k]) && matrices[k].elements() > 0) orthogonalize(k, compute);
  }
  exchange(compute, SendRecv::Kind::recv);
  share_updates(compute);
  update_hidden(learning_rate, compute);
  update_others(learning_rate, compute);
  engine.parameters_changed(compute);
  compute.copy(known_memory.data(), figures_memory.data(), sizeof(Figures));
}

Muon::Muon(fsdp::Engine& engine, const atoll::Mesh& mesh, Options options)
    : impl_(std::make_unique<Impl>(engine, mesh, std::move(options))) {}
Muon::Muon(Muon&&) noexcept = default;
Muon::~Muon() = default;

Muon::Impl& Muon::impl() const {
  if (impl_) return *impl_;
  throw atoll::Error(atoll::ErrorCode::invalid_argument,
                     "this Muon was moved from: use the Muon that it was moved to");
}

void Muon::step(float learning_rate, Stream& compute) {
  Impl& own = impl();
  try {
    own.enqueue_step(learning_rate, compute);
  } catch (...) {
    own.done = compute.record();  // enqueued work may still use the optimizer's memory
    throw;
  }
  own.done = compute.record();
}

float Muon::grad_norm() const {
  impl().done.synchronize();
  return static_cast<float>(impl().known().norm);
}

std::int64_t Muon::steps() const {
  impl().done.synchronize();
  return static_cast<std::int64_t>(impl().known().steps);
}

void Muon::set_steps(std::int64_t steps) {
  impl().done.synchronize();
  impl().known().steps = static_cast<double>(steps);
  impl().push_figures();
}

}  // namespace muon
