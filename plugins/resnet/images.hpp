// A folder of pictures as training data: a subfolder for each class, in the order of their names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace training {

struct Sample {
  std::string file;
  int64_t label = 0;
};

/// All JPEG and PNG files of `folder`'s subfolders, by name of class and file. Reads no picture. Throws
/// std::runtime_error: no such folder, no subfolder, no picture, more than `classes` classes.
std::vector<Sample> list_samples(const std::string& folder, int64_t classes);

/// The picture, squeezed to `edge` × `edge`, as 3 planes of values in 0..1 at `out`. Throws image::Unusable.
void read_picture(const std::string& file, uint32_t edge, float* out);

}  // namespace training
