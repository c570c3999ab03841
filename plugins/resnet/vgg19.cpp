#include "training.hpp"

class Vgg19 : public training::ImageTraining {
 public:
  Vgg19() : ImageTraining("vgg19") {}
};
FREERIDE_PLUGIN(Vgg19, "vgg19", "1", "trains Vgg19 on images")
