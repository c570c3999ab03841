#include "training.hpp"

#include <c10/core/Event.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#ifdef TRAINING_WITH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include "memory.hpp"
#include "models.hpp"
#include "version.hpp"
#ifdef TRAINING_WITH_IMAGES
#include "../image/codec.hpp"
#include "images.hpp"
#endif

namespace training {
namespace {

constexpr double kMomentum = 0.9;
// Larger models are saved in half the bits: a state may have 512 MiB, and training waits for nobody who writes it.
constexpr int64_t kWholeStateBytes = int64_t{64} << 20;
// Synthetic images: a few batches in turn, so that there is something to learn and nothing to generate in a step.
constexpr int kSyntheticBatches = 2;
constexpr int kMeasuredSteps = 3;
constexpr size_t kNamedUnits = 4;  // in the log line about those that are longer than a piece should be

// The version of the LibTorch that was found at run time, as its Python package says it; "" where it comes without one.
std::string found_version(std::string& where) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) == 0 || info.dli_fname == nullptr) return "";
  where = info.dli_fname;
  std::ifstream file(std::filesystem::path(where).parent_path() / "../version.py");
  for (std::string line; std::getline(file, line);) {
    const auto begin = line.find('\'');
    if (line.rfind("__version__", 0) == 0 && begin != std::string::npos)
      return line.substr(begin + 1, line.find('\'', begin + 1) - begin - 1);
  }
  return "";
}

void check_version() {
  const std::string built = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  std::string where;
  const std::string found = found_version(where);
  if (const auto problem = version_problem(built, found, where); !problem.empty()) throw freeride::TaskError(problem);
}

// LibTorch's messages go on with a stack trace.
[[noreturn]] void throw_what_it_is(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  if (const auto problem = memory_problem(line); !problem.empty()) throw freeride::OutOfMemory(problem);
  throw freeride::TaskError(line);
}

/// Units that one backward pass goes through: from leaves to what the next graph's leaves are made of.
struct Graph {
  Flow inputs, outputs;
};

/// Of which tensors a backward pass makes the gradients.
enum class Of { kAll, kWeights, kInputs };

// Gradients of a graph's inputs, of those of its outputs. An output that is an input handed on is no part of the graph:
// its gradient is added, as autograd would. In two passes, of the weights and then of the inputs, it computes the same.
void backward(Graph& graph, const Flow& next_inputs, Of of = Of::kAll, const Flow& weights = {}) {
  const torch::NoGradGuard no_grad;
  torch::autograd::variable_list roots, gradients;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> handed_on;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const torch::Tensor& output = graph.outputs[i];
    const auto input = std::find_if(graph.inputs.begin(), graph.inputs.end(),
                                    [&](const torch::Tensor& tensor) { return tensor.is_same(output); });
    if (input == graph.inputs.end()) {
      roots.push_back(output);
      gradients.push_back(next_inputs[i].grad());
    } else {
      handed_on.emplace_back(*input, next_inputs[i].grad());
    }
  }
  if (of == Of::kWeights) return torch::autograd::backward(roots, gradients, true, false, weights);
  torch::autograd::backward(roots, gradients, {}, false, of == Of::kInputs ? graph.inputs : Flow());
  for (const auto& [input, gradient] : handed_on) {
    torch::Tensor& own = input.mutable_grad();
    own = own.defined() ? own.add_(gradient) : gradient;
  }
}

/// The GPU's current stream, for yield_point(): the ends of the last two pieces that were queued on it.
class Queue {
 public:
  void mark() {
    if (last_ == nullptr) last_ = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
    if (before_ == nullptr) before_ = std::make_unique<c10::Event>(c10::DeviceType::CUDA);
    std::swap(last_, before_);
    last_->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(torch::Device(torch::kCUDA, 0)));
  }
  void wait(bool all) const {
    while (!(all ? last_ : before_)->query()) std::this_thread::yield();
  }

 private:
  std::unique_ptr<c10::Event> last_, before_;  // not before there is a GPU to make them on
};

}  // namespace

struct ImageTraining::Parts {
  Queue queue;
  std::shared_ptr<Model> model;
  std::vector<torch::Tensor> parameters, velocities;
  torch::Device device{torch::kCPU};
  std::vector<torch::Tensor> images, labels;  // of the batches in turn; with a folder, one to be filled
  uint64_t steps = 0;
  bool measures = false;
  std::chrono::steady_clock::time_point unit_begin;
  // By place in the step, of n units: forward of unit i at i, backward at 2n - 1 - i, then the update.
  std::vector<double> units_ms;
  std::vector<bool> cuts;          // whether a yield point follows
  std::vector<size_t> graph_ends;  // units behind the last one of each graph
  std::vector<bool> in_two;        // by unit: its backward is a piece for its weights and one for its input
#ifdef TRAINING_WITH_CUDA
  // A step's pieces, each captured once: a launch for each, instead of one for each kernel. They share memory, as they
  // are replayed in the order in which they were captured.
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> pieces;
  bool captures = false;
  c10::MempoolId_t pool{0, 0};
  torch::Tensor image, label, loss;
#endif
#ifdef TRAINING_WITH_IMAGES
  std::vector<Sample> samples;
  size_t next_sample = 0;
  torch::Tensor host_images, host_labels;
#endif
};

ImageTraining::ImageTraining(const char* model) : model_name_(model) {}
ImageTraining::~ImageTraining() = default;

void ImageTraining::create() {
  check_version();
  // The device is a core, and threads that LibTorch has once made look for work after it is done.
  parts_ = std::make_unique<Parts>();
  if (device().rfind("cpu-", 0) != 0) parts_->device = torch::Device(torch::kCUDA, 0);
  if (parts_->device.is_cpu()) torch::set_num_threads(1);
  // Not torch::manual_seed(), which asks the driver for GPUs: one that has asked is a client of its MPS server.
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(static_cast<uint64_t>(seed_.get()));
  try {
    load();
  } catch (const c10::Error& error) {
    throw_what_it_is(error.what_without_backtrace());
  }
}

void ImageTraining::load() {
  if (!data_.get().empty()) {
#ifdef TRAINING_WITH_IMAGES
    try {
      parts_->samples = list_samples(data_, classes_);
    } catch (const std::runtime_error& error) {
      throw freeride::BadParameter(error.what());
    }
    parts_->host_images = torch::empty({batch_, 3, image_, image_});
    parts_->host_labels = torch::empty({batch_}, torch::kLong);
#else
    throw freeride::BadParameter("data=" + data_.get() + ": this one was built without libjpeg and libpng");
#endif
  }
  parts_->model = make_model(model_name_, classes_, width_pct_);
}

void ImageTraining::init() {
  const bool cpu = parts_->device.is_cpu();
  if (!cpu && !torch::cuda::is_available())
    throw freeride::Unavailable("LibTorch sees no GPU: is it one that was built with CUDA?");
  try {
    if (!cpu) torch::cuda::manual_seed(static_cast<uint64_t>(seed_.get()));
    if (!cpu) at::globalContext().setBenchmarkCuDNN(true);
    parts_->model->to(parts_->device);
    parts_->model->train();
    parts_->parameters = parts_->model->parameters();
    for (const auto& parameter : parts_->parameters) parts_->velocities.push_back(torch::zeros_like(parameter));
    for (int i = 0; i < (data_.get().empty() ? kSyntheticBatches : 1); ++i) {
      parts_->images.push_back(torch::rand({batch_, 3, image_, image_}, parts_->device));
      parts_->labels.push_back(
          torch::randint(classes_, {batch_}, torch::TensorOptions().dtype(torch::kLong).device(parts_->device)));
    }
    measure_units();
  } catch (const c10::Error& error) {
    throw_what_it_is(error.what_without_backtrace());
  }
}

void ImageTraining::synchronise() const {
  if (parts_->device.is_cuda()) torch::cuda::synchronize();
}

// Under the init lease: cuDNN tries its kernels, and each unit's time is taken. Steps without effect, which also
// load what LibTorch loads when it is first used, and take the memory that steps need.
void ImageTraining::measure_units() {
  Parts& parts = *parts_;
  const size_t units = parts.model->units().size();
  for (size_t end = 1; end <= units; ++end) parts.graph_ends.push_back(end);
  parts.measures = true;
  for (int i = 0; i < kMeasuredSteps; ++i) {
    parts.unit_begin = std::chrono::steady_clock::now();
    measure_step();
  }
  cut();
  rehearse();  // as it will be
  capture();
}

void ImageTraining::measure_step() {
  Parts& parts = *parts_;
  const size_t batch = parts.steps % parts.images.size();
  make_step(parts.images[batch], parts.labels[batch], 0).item<double>();
  unit_done(2 * parts.model->units().size());
}

// Under the init lease, and nothing of it is executed. Where a step cannot be captured, its kernels are launched.
void ImageTraining::capture() {
#ifdef TRAINING_WITH_CUDA
  Parts& parts = *parts_;
  if (!parts.device.is_cuda() || graphs_ == 0) return;
  parts.image = parts.images[0].clone();
  parts.label = parts.labels[0].clone();
  for (auto& parameter : parts.parameters) parameter.mutable_grad().reset();
  synchronise();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  parts.pool = at::cuda::graph_pool_handle();
  parts.captures = true;
  std::string problem;
  try {
    next_piece();
    parts.loss = make_step(parts.image, parts.label, rate_);
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  }
  parts.captures = false;
  try {
    parts.pieces.back()->capture_end();
  } catch (const c10::Error& error) {
    if (problem.empty()) problem = error.what_without_backtrace();
  }
  if (problem.empty()) return;
  parts.pieces.clear();
  parts.loss = torch::Tensor();
  log("without CUDA graphs: " + problem.substr(0, problem.find('\n')));
#endif
}

void ImageTraining::next_piece() {
#ifdef TRAINING_WITH_CUDA
  Parts& parts = *parts_;
  if (!parts.pieces.empty()) parts.pieces.back()->capture_end();
  parts.pieces.push_back(std::make_unique<at::cuda::CUDAGraph>());
  parts.pieces.back()->capture_begin(parts.pool, cudaStreamCaptureModeRelaxed);
#endif
}

// A step by the captured pieces; false: there are none.
bool ImageTraining::replay(size_t batch) {
#ifdef TRAINING_WITH_CUDA
  Parts& parts = *parts_;
  if (parts.pieces.empty()) return false;
  parts.image.copy_(parts.images[batch]);
  parts.label.copy_(parts.labels[batch]);
  for (size_t i = 0; i < parts.pieces.size(); ++i) {
    parts.pieces[i]->replay();
    if (i + 1 < parts.pieces.size()) piece_done(true);
  }
  metric("loss", parts.loss.item<double>());
  return true;
#else
  static_cast<void>(batch);
  return false;
#endif
}

// A step without effect, and without yield points.
void ImageTraining::rehearse() {
  parts_->measures = true;
  measure_step();
  parts_->measures = false;
  at::_foreach_zero_(parts_->velocities);
  synchronise();
}

bool ImageTraining::captured() const {
#ifdef TRAINING_WITH_CUDA
  return !parts_->pieces.empty();
#else
  return false;
#endif
}

// cuDNN's kernels are found for each thread anew, which takes seconds.
void ImageTraining::prepare() {
  try {
    if (parts_->device.is_cuda() && !captured()) rehearse();
  } catch (const c10::Error& error) {
    throw_what_it_is(error.what_without_backtrace());
  }
}

// Cuts the step before each unit with which a piece would become too long. Forward a step can stop between any two
// units; backward it can between two graphs.
void ImageTraining::cut() {
  Parts& parts = *parts_;
  const auto& units = parts.model->units();
  const size_t places = parts.units_ms.size();
  double piece_ms = 0;
  std::vector<std::pair<double, std::string>> longer;
  for (size_t i = 0; i < places; ++i) {
    piece_ms += parts.units_ms[i];
    parts.cuts.push_back(piece_ms_ > 0 && i + 1 < places && piece_ms + parts.units_ms[i + 1] > piece_ms_);
    if (parts.cuts.back()) piece_ms = 0;
    if (parts.units_ms[i] <= piece_ms_) continue;
    longer.emplace_back(parts.units_ms[i], i + 1 == places    ? "the update"
                                           : i < units.size() ? units[i]->what()
                                                              : units[places - 2 - i]->what() + " backward");
  }
  parts.graph_ends.clear();
  for (size_t end = 1; end <= units.size(); ++end) {
    if (end == units.size() || parts.cuts[places - 2 - end]) parts.graph_ends.push_back(end);
  }
  if (piece_ms_ <= 0) return;
  // What a pass apiece for weights and input does twice is only worth it for what is long.
  for (size_t i = 0; i < units.size(); ++i) {
    const bool alone = i > 0 && i + 1 < units.size() && parts.cuts[places - 2 - i] && parts.cuts[places - 3 - i];
    parts.in_two.push_back(alone && parts.units_ms[places - 2 - i] > 2 * piece_ms_ && !units[i]->parameters().empty());
  }
  std::sort(longer.rbegin(), longer.rend());
  std::ostringstream text;
  text << "a step is cut into "
       << 1 + std::count(parts.cuts.begin(), parts.cuts.end(), true) +
              std::count(parts.in_two.begin(), parts.in_two.end(), true)
       << " pieces";
  text << std::fixed << std::setprecision(1)
       << (longer.empty() ? "" : "; of a single layer, and longer than piece_ms: ");
  for (size_t i = 0; i < std::min(longer.size(), kNamedUnits); ++i)
    text << (i == 0 ? "" : ", ") << longer[i].second << " " << longer[i].first << " ms";
  if (longer.size() > kNamedUnits) text << " and " << longer.size() - kNamedUnits << " more";
  log(text.str());
}

// Between two units of a step, forward and backward.
void ImageTraining::unit_done(size_t place) {
  Parts& parts = *parts_;
  if (parts.measures) {
    synchronise();
    const auto now = std::chrono::steady_clock::now();
    const double took_ms = std::chrono::duration<double, std::milli>(now - parts.unit_begin).count();
    parts.unit_begin = now;
    if (!parts.cuts.empty()) return;
    if (place == parts.units_ms.size()) parts.units_ms.push_back(took_ms);
    parts.units_ms[place] = std::min(parts.units_ms[place], took_ms);
  } else if (parts.cuts[place]) {
    piece_done(parts.device.is_cuda());
  }
}

// `queued`: on the GPU, which may still be at it.
void ImageTraining::piece_done(bool queued) {
#ifdef TRAINING_WITH_CUDA
  if (parts_->captures) return next_piece();
#endif
  queued ? yield_point(parts_->queue) : yield_point();
}

#ifdef TRAINING_WITH_IMAGES
// The next pictures, one a piece.
void ImageTraining::load_batch() {
  Parts& parts = *parts_;
  const auto edge = static_cast<uint32_t>(image_.get());
  auto* pixels = parts.host_images.data_ptr<float>();
  auto* labels = parts.host_labels.data_ptr<int64_t>();
  size_t unusable = 0;
  for (int64_t i = 0; i < batch_;) {
    const Sample& sample = parts.samples[parts.next_sample];
    parts.next_sample = (parts.next_sample + 1) % parts.samples.size();
    try {
      read_picture(sample.file, edge, pixels + i * 3 * image_ * image_);
      labels[i++] = sample.label;
    } catch (const image::Unusable& error) {
      warn(sample.file + " is left out: " + error.what());
      if (++unusable == parts.samples.size())
        throw freeride::TaskError("no picture in " + data_.get() + " can be used");
    }
    if (piece_ms_ > 0) piece_done(false);
  }
  parts.images[0].copy_(parts.host_images);
  parts.labels[0].copy_(parts.host_labels);
}
#endif

// Stochastic gradient descent with momentum, all parameters in a few kernels.
void ImageTraining::update(double rate) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : parts_->parameters) gradients.push_back(parameter.grad());
  at::_foreach_mul_(parts_->velocities, kMomentum);
  at::_foreach_add_(parts_->velocities, gradients, 1);
  at::_foreach_add_(parts_->parameters, parts_->velocities, -rate);
}

void ImageTraining::step() {
  try {
#ifdef TRAINING_WITH_IMAGES
    if (!parts_->samples.empty()) load_batch();
#endif
    const size_t batch = parts_->steps % parts_->images.size();
    if (!replay(batch)) metric("loss", make_step(parts_->images[batch], parts_->labels[batch], rate_).item<double>());
    synchronise();
    metric("batches", static_cast<double>(++parts_->steps));
  } catch (const c10::Error& error) {
    throw_what_it_is(error.what_without_backtrace());
  }
}

// Each graph's forward begins with leaves, its backward with the gradients that the next graph's leaves got. The result
// is that of one graph over all units.
torch::Tensor ImageTraining::make_step(const torch::Tensor& images, const torch::Tensor& labels, double rate) {
  Parts& parts = *parts_;
  const auto& units = parts.model->units();
  size_t unit = 0;
  std::vector<Graph> graphs;
  Flow flow{images};
  for (const size_t end : parts.graph_ends) {
    Graph& graph = graphs.emplace_back();
    for (const auto& tensor : flow) graph.inputs.push_back(tensor.detach().requires_grad_(unit > 0));
    flow = graph.inputs;
    for (; unit < end; ++unit) {
      if (unit > 0) unit_done(unit - 1);
      flow = units[unit]->forward(std::move(flow));
    }
    graph.outputs = flow;
  }
  const torch::Tensor loss = torch::nn::functional::cross_entropy(flow[0], labels);
  unit_done(units.size() - 1);
  for (auto& parameter : parts.parameters) parameter.mutable_grad().reset();
  for (size_t i = graphs.size(); i-- > 0;) {
    const size_t first = i > 0 ? parts.graph_ends[i - 1] : 0;
    if (i + 1 == graphs.size()) {
      loss.backward();
    } else if (!parts.in_two.empty() && parts.in_two[first]) {
      backward(graphs[i], graphs[i + 1].inputs, Of::kWeights, units[first]->parameters());
      if (!parts.measures) piece_done(parts.device.is_cuda());
      backward(graphs[i], graphs[i + 1].inputs, Of::kInputs);
    } else {
      backward(graphs[i], graphs[i + 1].inputs);
    }
    graphs.resize(i + 1);  // the next one's tensors are not needed any more
    graphs[i].outputs.clear();
    unit_done(2 * units.size() - 1 - first);
  }
  update(rate);
  return loss.detach();
}

void ImageTraining::release() {
  parts_.reset();  // with the device's memory
}

// The number of steps, then weights and running means; the momentum begins anew.
std::string ImageTraining::save() {
  std::vector<torch::Tensor> tensors = parts_->model->parameters();
  for (const auto& buffer : parts_->model->buffers()) tensors.push_back(buffer);
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  for (auto& tensor : tensors) {
    tensor = tensor.detach().cpu();  // first: on the GPU the conversion would execute beside training
    if (bytes > kWholeStateBytes && tensor.is_floating_point()) tensor = tensor.to(torch::kBFloat16);
  }
  std::ostringstream out;
  out << parts_->steps << "\n";
  torch::save(tensors, out);
  return out.str();
}

void ImageTraining::restore(std::uint32_t version, const std::string& state) {
  if (version != kStateVersion) throw freeride::TaskError("a state of version " + std::to_string(version));
  const size_t line = state.find('\n');
  if (line == std::string::npos) throw freeride::TaskError("the state is damaged");
  // LibTorch reads a stream from its beginning, wherever it stands.
  std::istringstream head(state.substr(0, line)), in(state.substr(line + 1));
  std::vector<torch::Tensor> tensors;
  uint64_t steps = 0;
  head >> steps;
  try {
    torch::load(tensors, in);
    std::vector<torch::Tensor> own = parts_->model->parameters();
    for (const auto& buffer : parts_->model->buffers()) own.push_back(buffer);
    if (own.size() != tensors.size()) throw freeride::TaskError("the state is of another model");
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i].sizes() != tensors[i].sizes()) throw freeride::TaskError("the state is of a model with other classes");
      own[i].copy_(tensors[i]);
    }
  } catch (const c10::Error& error) {
    throw_what_it_is(error.what_without_backtrace());
  }
  parts_->steps = steps;
}

}  // namespace training
