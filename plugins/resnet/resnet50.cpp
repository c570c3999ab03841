#include "training.hpp"

class ResNet50 : public training::ImageTraining {
 public:
  ResNet50() : ImageTraining("resnet50") {}
};
FREERIDE_PLUGIN(ResNet50, "resnet50", "1", "trains ResNet50 on images")
