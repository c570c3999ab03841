// ResNet18, ResNet50 and VGG19 as lists of blocks, so that a step can stop between any two of them.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace training {

/// A stretch of a model that is run in one go.
class Block : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
};

/// A model as its blocks in order; parameters() and to() as of any module. Weights as torchvision initialises them.
class Model : public torch::nn::Module {
 public:
  const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }
  void add(std::shared_ptr<Block> block);

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
};

/// `name`: "resnet18", "resnet50" or "vgg19", of He et al. 2015 and Simonyan and Zisserman 2014, with torchvision's
/// layers and their order, and so many of their channels. On the CPU. Throws std::logic_error for any other name.
std::shared_ptr<Model> make_model(const std::string& name, int64_t classes, int64_t width_pct);

}  // namespace training
