#include "models.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace training {
namespace {

namespace nn = torch::nn;

/// Layers one after the other, of the flow's first tensor. `keeps`: their input goes on beside their result.
class Plain final : public Unit {
 public:
  Plain(std::string what, nn::Sequential layers, bool keeps = false)
      : Unit(std::move(what)), layers_(register_module("layers", std::move(layers))), keeps_(keeps) {}
  Flow forward(Flow flow) override {
    torch::Tensor result = layers_->forward(flow[0]);
    if (keeps_) return {result, flow[0]};
    flow[0] = result;
    return flow;
  }

 private:
  nn::Sequential layers_;
  const bool keeps_;
};

/// The end of a residual block: the last layers' result is added to the block's input, or to that one's projection.
class Join final : public Unit {
 public:
  Join(std::string what, nn::Sequential layers, nn::Sequential shortcut)
      : Unit(std::move(what)),
        layers_(register_module("layers", std::move(layers))),
        shortcut_(register_module("shortcut", std::move(shortcut))) {}
  Flow forward(Flow flow) override {
    torch::Tensor sum = layers_->forward(flow[0]);
    sum += shortcut_->is_empty() ? flow[1] : shortcut_->forward(flow[1]);
    return {sum.relu_()};
  }

 private:
  nn::Sequential layers_, shortcut_;
};

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, bool bias = false) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(bias));
}

nn::ReLU relu() {
  return nn::ReLU(nn::ReLUOptions().inplace(true));
}

nn::Sequential shortcut(int64_t in, int64_t out, int64_t stride) {
  return in == out && stride == 1 ? nn::Sequential() : nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out));
}

void add_conv(Model& model, const std::string& what, const nn::Conv2d& layer, bool keeps = false) {
  model.add(std::make_shared<Plain>(what, nn::Sequential(layer), keeps));
}

void add_norm(Model& model, const std::string& what, int64_t channels) {
  model.add(std::make_shared<Plain>(what, nn::Sequential(nn::BatchNorm2d(channels), relu())));
}

void add_join(Model& model, const std::string& what, int64_t in, int64_t out, int64_t stride) {
  model.add(std::make_shared<Join>(what, nn::Sequential(nn::BatchNorm2d(out)), shortcut(in, out, stride)));
}

void add_basic(Model& model, const std::string& what, int64_t in, int64_t out, int64_t stride) {
  add_conv(model, what + "conv1", conv(in, out, 3, stride), true);
  add_norm(model, what + "norm1", out);
  add_conv(model, what + "conv2", conv(out, out, 3));
  add_join(model, what + "sum", in, out, stride);
}

void add_bottleneck(Model& model, const std::string& what, int64_t in, int64_t out, int64_t stride) {
  const int64_t middle = out / 4;
  add_conv(model, what + "conv1", conv(in, middle, 1), true);
  add_norm(model, what + "norm1", middle);
  add_conv(model, what + "conv2", conv(middle, middle, 3, stride));
  add_norm(model, what + "norm2", middle);
  add_conv(model, what + "conv3", conv(middle, out, 1));
  add_join(model, what + "sum", in, out, stride);
}

// Of `channels`; a multiple of four, since a bottleneck has a fourth of them.
int64_t narrowed(int64_t channels, int64_t width_pct) {
  return std::max<int64_t>(8, channels * width_pct / 100 / 4 * 4);
}

std::shared_ptr<Model> resnet(const std::vector<int>& depths, bool deep, int64_t classes, int64_t width_pct) {
  auto model = std::make_shared<Model>();
  int64_t in = narrowed(64, width_pct);
  add_conv(*model, "conv1", conv(3, in, 7, 2));
  add_norm(*model, "norm1", in);
  model->add(
      std::make_shared<Plain>("pool", nn::Sequential(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)))));
  for (size_t stage = 0; stage < depths.size(); ++stage) {
    const int64_t out = narrowed((int64_t{64} << stage) * (deep ? 4 : 1), width_pct);
    for (int i = 0; i < depths[stage]; ++i) {
      const int64_t stride = i == 0 && stage > 0 ? 2 : 1;
      const std::string what = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + " ";
      (deep ? add_bottleneck : add_basic)(*model, what, in, out, stride);
      in = out;
    }
  }
  model->add(
      std::make_shared<Plain>("fc", nn::Sequential(nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(in, classes))));
  return model;
}

std::shared_ptr<Model> vgg19(int64_t classes, int64_t width_pct) {
  auto model = std::make_shared<Model>();
  int64_t in = 3;
  const std::vector<std::pair<int64_t, int>> stages{{64, 2}, {128, 2}, {256, 4}, {512, 4}, {512, 4}};
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const auto& [channels, depth] = stages[stage];
    const int64_t out = narrowed(channels, width_pct);
    const std::string at = std::to_string(stage + 1);
    for (int i = 0; i < depth; ++i) {
      // Rectified in place, so in one unit: what goes from unit to unit is not changed any more.
      model->add(std::make_shared<Plain>("conv" + at + "." + std::to_string(i),
                                         nn::Sequential(conv(in, out, 3, 1, true), relu())));
      in = out;
    }
    model->add(std::make_shared<Plain>("pool" + at, nn::Sequential(nn::MaxPool2d(nn::MaxPool2dOptions(2)))));
  }
  const int64_t hidden = narrowed(4096, width_pct);
  model->add(std::make_shared<Plain>("fc1", nn::Sequential(nn::AdaptiveAvgPool2d(7), nn::Flatten(),
                                                           nn::Linear(in * 49, hidden), relu(), nn::Dropout())));
  model->add(std::make_shared<Plain>("fc2", nn::Sequential(nn::Linear(hidden, hidden), relu(), nn::Dropout())));
  model->add(std::make_shared<Plain>("fc3", nn::Sequential(nn::Linear(hidden, classes))));
  return model;
}

void initialise(Model& model, bool vgg) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : model.modules(false)) {
    if (auto* convolution = module->as<nn::Conv2d>()) {
      nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
      if (convolution->bias.defined()) nn::init::zeros_(convolution->bias);
    } else if (auto* linear = vgg ? module->as<nn::Linear>() : nullptr) {
      nn::init::normal_(linear->weight, 0, 0.01);
      nn::init::zeros_(linear->bias);
    }
  }
}

}  // namespace

void Model::add(std::shared_ptr<Unit> unit) {
  units_.push_back(register_module("unit" + std::to_string(units_.size()), std::move(unit)));
}

std::shared_ptr<Model> make_model(const std::string& name, int64_t classes, int64_t width_pct) {
  std::shared_ptr<Model> model;
  if (name == "resnet18") model = resnet({2, 2, 2, 2}, false, classes, width_pct);
  if (name == "resnet50") model = resnet({3, 4, 6, 3}, true, classes, width_pct);
  if (name == "vgg19") model = vgg19(classes, width_pct);
  if (!model) throw std::logic_error("there is no model " + name);
  initialise(*model, name == "vgg19");
  return model;
}

}  // namespace training
