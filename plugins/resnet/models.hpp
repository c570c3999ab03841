// ResNet18, ResNet50 and VGG19 as lists of units, so that a step can stop between any two of them.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace training {

/// What goes from unit to unit: a tensor, and in the middle of a residual block its input, too, for the block's end.
using Flow = std::vector<torch::Tensor>;

/// A stretch of a model that is run in one go: a convolution, a normalisation, what joins a shortcut.
class Unit : public torch::nn::Module {
 public:
  explicit Unit(std::string what) : what_(std::move(what)) {}
  virtual Flow forward(Flow flow) = 0;
  /// What it is, for people.
  const std::string& what() const { return what_; }

 private:
  std::string what_;
};

/// A model as its units in order; parameters() and to() as of any module. Weights as torchvision initialises them.
class Model : public torch::nn::Module {
 public:
  const std::vector<std::shared_ptr<Unit>>& units() const { return units_; }
  void add(std::shared_ptr<Unit> unit);

 private:
  std::vector<std::shared_ptr<Unit>> units_;
};

/// `name`: "resnet18", "resnet50" or "vgg19", of He et al. 2015 and Simonyan and Zisserman 2014, with torchvision's
/// layers and their order, and so many of their channels. On the CPU. Throws std::logic_error for any other name.
std::shared_ptr<Model> make_model(const std::string& name, int64_t classes, int64_t width_pct);

}  // namespace training
