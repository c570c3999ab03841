#include "models.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace training {
namespace {

namespace nn = torch::nn;

/// Layers one after the other.
class Plain final : public Block {
 public:
  explicit Plain(nn::Sequential layers) : layers_(register_module("layers", std::move(layers))) {}
  torch::Tensor forward(const torch::Tensor& input) override { return layers_->forward(input); }

 private:
  nn::Sequential layers_;
};

/// Layers whose result is added to the input, or to the input's projection.
class Residual final : public Block {
 public:
  Residual(nn::Sequential layers, nn::Sequential shortcut)
      : layers_(register_module("layers", std::move(layers))),
        shortcut_(register_module("shortcut", std::move(shortcut))) {}
  torch::Tensor forward(const torch::Tensor& input) override {
    torch::Tensor sum = layers_->forward(input);
    sum += shortcut_->is_empty() ? input : shortcut_->forward(input);
    return sum.relu_();
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

std::shared_ptr<Block> basic(int64_t in, int64_t out, int64_t stride) {
  return std::make_shared<Residual>(
      nn::Sequential(conv(in, out, 3, stride), nn::BatchNorm2d(out), relu(), conv(out, out, 3), nn::BatchNorm2d(out)),
      shortcut(in, out, stride));
}

std::shared_ptr<Block> bottleneck(int64_t in, int64_t out, int64_t stride) {
  const int64_t middle = out / 4;
  return std::make_shared<Residual>(
      nn::Sequential(conv(in, middle, 1), nn::BatchNorm2d(middle), relu(), conv(middle, middle, 3, stride),
                     nn::BatchNorm2d(middle), relu(), conv(middle, out, 1), nn::BatchNorm2d(out)),
      shortcut(in, out, stride));
}

// Of `channels`; a multiple of four, since a bottleneck has a fourth of them.
int64_t narrowed(int64_t channels, int64_t width_pct) {
  return std::max<int64_t>(8, channels * width_pct / 100 / 4 * 4);
}

std::shared_ptr<Model> resnet(const std::vector<int>& depths, bool deep, int64_t classes, int64_t width_pct) {
  auto model = std::make_shared<Model>();
  int64_t in = narrowed(64, width_pct);
  model->add(std::make_shared<Plain>(nn::Sequential(conv(3, in, 7, 2), nn::BatchNorm2d(in), relu(),
                                                    nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)))));
  for (size_t stage = 0; stage < depths.size(); ++stage) {
    const int64_t out = narrowed((int64_t{64} << stage) * (deep ? 4 : 1), width_pct);
    for (int i = 0; i < depths[stage]; ++i) {
      const int64_t stride = i == 0 && stage > 0 ? 2 : 1;
      model->add(deep ? bottleneck(in, out, stride) : basic(in, out, stride));
      in = out;
    }
  }
  model->add(std::make_shared<Plain>(nn::Sequential(nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(in, classes))));
  return model;
}

std::shared_ptr<Model> vgg19(int64_t classes, int64_t width_pct) {
  auto model = std::make_shared<Model>();
  int64_t in = 3;
  const std::vector<std::pair<int64_t, int>> stages{{64, 2}, {128, 2}, {256, 4}, {512, 4}, {512, 4}};
  for (const auto& [channels, depth] : stages) {
    const int64_t out = narrowed(channels, width_pct);
    nn::Sequential layers;
    for (int i = 0; i < depth; ++i) {
      layers->push_back(conv(in, out, 3, 1, true));
      layers->push_back(relu());
      in = out;
    }
    layers->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(2)));
    model->add(std::make_shared<Plain>(layers));
  }
  const int64_t hidden = narrowed(4096, width_pct);
  model->add(std::make_shared<Plain>(
      nn::Sequential(nn::AdaptiveAvgPool2d(7), nn::Flatten(), nn::Linear(in * 49, hidden), relu(), nn::Dropout(),
                     nn::Linear(hidden, hidden), relu(), nn::Dropout(), nn::Linear(hidden, classes))));
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

void Model::add(std::shared_ptr<Block> block) {
  blocks_.push_back(register_module("block" + std::to_string(blocks_.size()), std::move(block)));
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
