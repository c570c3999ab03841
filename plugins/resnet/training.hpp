// Training an image classifier with LibTorch: the side task behind resnet18.so, resnet50.so and vgg19.so. No header of
// LibTorch's here, so that a plugin's own file compiles in a moment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "freeride/plugin.hpp"

namespace at {
class Tensor;
}

namespace training {

class ImageTraining : public freeride::SideTask, public freeride::KeepsState {
 public:
  explicit ImageTraining(const char* model);
  ~ImageTraining() override;

  void CreateSideTask() override { create(); }
  void InitSideTask() override { init(); }
  freeride::Step RunNextStep() override { return step(), freeride::Step::kMore; }
  void PrepareGpuWorkload() override { prepare(); }
  void StopSideTask() override { release(); }
  std::string SaveState() override { return save(); }
  void RestoreState(std::uint32_t version, const std::string& state) override { restore(version, state); }

 private:
  struct Parts;
  void create();
  void load();
  void init();
  void prepare();
  void step();
  void release();
  std::string save();
  void restore(std::uint32_t version, const std::string& state);
  void load_batch();
  void update(double rate);
  void synchronise() const;
  /// A step on one batch, which is on the device; the loss, there too.
  at::Tensor make_step(const at::Tensor& images, const at::Tensor& labels, double rate);
  void measure_step();
  void capture();
  bool captured() const;
  void next_piece();
  bool replay(std::size_t batch);
  void unit_done(size_t place);
  void piece_done(bool queued);
  void measure_units();
  void rehearse();
  void cut();

  freeride::Param<std::int64_t> batch_{this, "batch", 64, "images a step", {1, 65536}};
  freeride::Param<std::int64_t> image_{this, "image", 224, "edge of an image, pixels", {32, 4096}};
  freeride::Param<std::int64_t> classes_{this, "classes", 1000, "to tell apart", {2, 100000}};
  freeride::Param<std::int64_t> width_pct_{this, "width_pct", 100, "of the model's channels", {1, 100}};
  freeride::Param<std::string> data_{
      this, "data", "", "folder of a folder of JPEG and PNG files for each class; empty: synthetic images"};
  freeride::Param<double> rate_{this, "rate", 0.01, "learning rate", {0, 10}};
  freeride::Param<std::int64_t> seed_{this, "seed", 1, "of weights and synthetic images"};
  freeride::Param<double> piece_ms_{
      this, "piece_ms", 2, "of a step, at most, between yield points at the model's layers; 0: none", {0, 10000}};
  freeride::Param<std::int64_t> graphs_{
      this, "graphs", 1, "1: a step's pieces are CUDA graphs, where it was built with CUDA's headers", {0, 1}};
  freeride::Param<std::string> python_{this, "python", "", "the Python whose torch it is to run with"};
  const char* const model_name_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace training
