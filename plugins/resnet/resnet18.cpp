#include "training.hpp"

class ResNet18 : public training::ImageTraining {
 public:
  ResNet18() : ImageTraining("resnet18") {}
};
FREERIDE_PLUGIN(ResNet18, "resnet18", "1", "trains ResNet18 on images")
