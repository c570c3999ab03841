#include "training.hpp"

#include <c10/core/Event.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

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
  std::chrono::steady_clock::time_point block_begin;
  std::vector<double> blocks_ms;  // by place in the step
  std::vector<bool> cuts;         // whether a yield point follows
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
    measure_blocks();
  } catch (const c10::Error& error) {
    throw_what_it_is(error.what_without_backtrace());
  }
}

void ImageTraining::synchronise() const {
  if (parts_->device.is_cuda()) torch::cuda::synchronize();
}

// Under InitSideTask's grant: cuDNN tries its kernels, and each block's time is taken. Then the step is cut before
// each block with which a piece would become too long.
void ImageTraining::measure_blocks() {
  Parts& parts = *parts_;
  parts.measures = true;
  for (int i = 0; i < kMeasuredSteps; ++i) {
    parts.block_begin = std::chrono::steady_clock::now();
    make_step(false);
  }
  parts.measures = false;
  // The rest of a step, without effect: what LibTorch loads when it is first used is loaded here and not in a bubble.
  update(0);
  at::_foreach_zero_(parts.velocities);
  synchronise();
  double piece_ms = 0;
  for (size_t i = 0; i < parts.blocks_ms.size(); ++i) {
    piece_ms += parts.blocks_ms[i];
    const double next_ms = i + 1 < parts.blocks_ms.size() ? parts.blocks_ms[i + 1] : 0;
    parts.cuts.push_back(piece_ms_ > 0 && piece_ms + next_ms > piece_ms_);
    if (parts.cuts.back()) piece_ms = 0;
  }
}

// Between two blocks of a step, forward and backward.
void ImageTraining::block_done(size_t place) {
  Parts& parts = *parts_;
  if (parts.measures) {
    synchronise();
    const auto now = std::chrono::steady_clock::now();
    const double took_ms = std::chrono::duration<double, std::milli>(now - parts.block_begin).count();
    parts.block_begin = now;
    if (place == parts.blocks_ms.size()) parts.blocks_ms.push_back(took_ms);
    parts.blocks_ms[place] = std::min(parts.blocks_ms[place], took_ms);
  } else if (parts.cuts[place]) {
    parts.device.is_cuda() ? yield_point(parts.queue) : yield_point();
  }
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
    if (piece_ms_ > 0) yield_point();
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
    make_step(true);
    synchronise();
    ++parts_->steps;
  } catch (const c10::Error& error) {
    throw_what_it_is(error.what_without_backtrace());
  }
}

// Each block is a graph of its own: forward from a leaf, backward with the gradient that the next block's leaf got. The
// result is that of one graph over all of them.
void ImageTraining::make_step(bool updates) {
  Parts& parts = *parts_;
  const size_t batch = parts.steps % parts.images.size();
  const auto& blocks = parts.model->blocks();
  size_t place = 0;
  std::vector<torch::Tensor> inputs, outputs;
  torch::Tensor flowing = parts.images[batch];
  for (size_t i = 0; i < blocks.size(); ++i) {
    inputs.push_back(flowing.detach().requires_grad_(i > 0));
    outputs.push_back(blocks[i]->forward(inputs[i]));
    flowing = outputs[i];
    if (i + 1 < blocks.size()) block_done(place++);
  }
  const torch::Tensor loss = torch::nn::functional::cross_entropy(outputs.back(), parts.labels[batch]);
  block_done(place++);
  for (auto& parameter : parts.parameters) parameter.mutable_grad().reset();
  loss.backward();
  for (size_t i = blocks.size() - 1; i-- > 0;) {
    block_done(place++);
    outputs[i].backward(inputs[i + 1].grad());
    outputs[i].reset();
    inputs[i + 1].reset();
  }
  block_done(place++);
  if (updates) update(rate_);
  const auto value = loss.item<double>();
  if (updates) metric("loss", value);
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
