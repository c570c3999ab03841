// Side task: resizes every picture of a folder and puts a watermark on it. docs/tasks/shipped.md lists the parameters.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "codec.hpp"
#include "common/backend.hpp"
#include "freeride/plugin.hpp"
#include "pictures.hpp"
#include "scaler.hpp"

namespace image {
namespace {

namespace fs = std::filesystem;

class Image : public freeride::SideTask, public freeride::KeepsState {
  freeride::Param<std::string> input_{this, "input", "",
                                      "folder of JPEG and PNG pictures; empty: render test pictures into scratch"};
  freeride::Param<std::string> output_{this, "output", "", "folder for the results; empty: out/ in scratch"};
  freeride::Param<uint32_t> width_{this, "width", 640, "of the results, pixels", {1, 32768}};
  freeride::Param<uint32_t> height_{
      this, "height", 0, "of the results, pixels; 0: keep the picture's shape", {0, 32768}};
  freeride::Param<std::string> filter_{
      this, "filter", "auto", "box to shrink, bilinear to grow", {"auto", "box", "bilinear"}};
  freeride::Param<std::string> watermark_{this, "watermark", "FreeRide", "text; empty: none"};
  freeride::Param<double> opacity_{this, "opacity", 0.5, "of the watermark", {0, 1}};
  freeride::Param<std::string> format_{this, "format", "same", "of the results", {"same", "jpeg", "png"}};
  freeride::Param<int> quality_{this, "quality", 85, "of JPEG results", {1, 100}};
  freeride::Param<uint64_t> max_megapixels_{this, "max_megapixels", 400, "skip pictures that have more", {1, 100000}};
  freeride::Param<uint32_t> synthetic_{
      this, "synthetic", 0, "instead of a folder: one picture of that many pixels a side, from memory", {0, 65536}};
  freeride::Param<bool> repeat_{this, "repeat", true, "after the last picture begin again with the first"};
  common::Computing computing_{this};

  void CreateSideTask() override {
    scaler_ = make_scaler(computing_.on(device()));
    const fs::path scratch = scratch_dir();
    out_dir_ = output_.get().empty() ? scratch / "out" : fs::path(output_.get());
    make_folder(out_dir_);
    if (synthetic_ > 0) {
      if (!input_.get().empty()) throw freeride::BadParameter("parameters input and synthetic: give one of them");
      files_ = {"synthetic.jpg"};
    } else if (input_.get().empty()) {
      in_dir_ = scratch / "in";
      make_folder(in_dir_);
      phase_ = Phase::kRender;
    } else {
      in_dir_ = input_.get();
      list_pictures();
    }
    std::error_code ignored;
    if (fs::equivalent(in_dir_, out_dir_, ignored)) {
      throw freeride::BadParameter("input and output are the same folder; results would replace the pictures");
    }
  }

  void InitSideTask() override { scaler_->init(synthetic_); }

  freeride::Step RunNextStep() override {
    return computing_.step([this] { return advance(); });
  }

  void StopSideTask() override {
    drop_picture();  // the unfinished one; the others are on disk already
    scaler_->release();
    log(std::to_string(images_) + " pictures written, " + std::to_string(skipped_) + " skipped");
  }

  // What is done; the picture in work is begun again.
  struct Saved {
    uint64_t done, rendered, images, skipped, skipped_this_pass, passes, files;
    double megapixels;
  };

  std::string SaveState() override {
    const bool in_work = phase_ == Phase::kPrepare || phase_ == Phase::kRows;
    const Saved saved{next_ - (in_work ? 1 : 0), rendered_, images_,       skipped_,
                      skipped_this_pass_,        passes_,   files_.size(), megapixels_};
    return {reinterpret_cast<const char*>(&saved), sizeof(saved)};
  }

  void RestoreState(uint32_t version, const std::string& state) override {
    Saved saved{};
    if (version != kStateVersion || state.size() != sizeof(saved))
      throw freeride::TaskError("the saved state is of another version of image");
    std::memcpy(&saved, state.data(), sizeof(saved));
    images_ = saved.images;
    skipped_ = saved.skipped;
    passes_ = saved.passes;
    megapixels_ = saved.megapixels;
    if (phase_ == Phase::kRender) {
      rendered_ = static_cast<unsigned>(std::min<uint64_t>(saved.rendered, kPictures));
      if (rendered_ < kPictures) return;
      list_pictures();
      phase_ = Phase::kOpen;
    }
    if (saved.files != files_.size()) return;  // another folder, or other pictures in it: from its first on
    next_ = std::min<uint64_t>(saved.done, files_.size());
    skipped_this_pass_ = saved.skipped_this_pass;
  }

  enum class Phase { kRender, kOpen, kPrepare, kRows };

  // One small piece of work, a row or so; true when the task is done.
  bool advance() {
    if (phase_ == Phase::kRender) {
      render();
      return false;
    }
    // Counted as read before it is tried, so that a picture that cannot be read is passed over.
    try {
      switch (phase_) {
        case Phase::kOpen:
          if (next_ == files_.size()) return end_pass();
          ++next_;
          open();
          phase_ = Phase::kPrepare;
          break;
        case Phase::kPrepare:
          if (reader_->prepare()) begin_rows();
          break;
        case Phase::kRows:
          row();
          break;
        case Phase::kRender:
          break;
      }
    } catch (const Unusable& why) {
      skip(why.what());
    }
    return false;
  }

  void render() {
    const auto what = picture(rendered_);
    if (!writer_) {
      row_.resize(size_t{kPictureWidth} * 3);
      rendered_rows_ = 0;
      writer_ = create_writer((in_dir_ / what.name).string(), what.format, kPictureWidth, kPictureHeight, 3, 90);
    }
    picture_row(rendered_, rendered_rows_, row_.data());
    writer_->write_row(row_.data());
    if (++rendered_rows_ < kPictureHeight) return;
    writer_->finish();
    writer_.reset();
    if (++rendered_ < kPictures) return;
    list_pictures();
    phase_ = Phase::kOpen;
  }

  const fs::path& file() const { return files_[next_ - 1]; }

  void open() {
    if (synthetic_ > 0) {
      source_format_ = Format::kJpeg;
      reader_ = open_synthetic(synthetic_);
      return;
    }
    const auto path = file().string();
    source_format_ = format_of(path);
    reader_ = open_reader(path, max_pixels());
  }

  void begin_rows() {
    const bool jpeg = format_.get() == "jpeg" || (format_.get() == "same" && source_format_ == Format::kJpeg);
    const double shape = static_cast<double>(reader_->height()) / reader_->width();
    const double tall = height_ > 0 ? height_.get() : std::max(1.0, std::round(width_ * shape));
    if (tall * width_ > static_cast<double>(max_pixels()) || (jpeg && tall > kMaxJpegSide)) {
      throw Unusable("its result would be " + std::to_string(width_) + " x " +
                     std::to_string(static_cast<uint64_t>(tall)) + " pixels");
    }
    const auto height = static_cast<uint32_t>(tall);
    const auto filter = filter_.get() == "box"        ? Filter::kBox
                        : filter_.get() == "bilinear" ? Filter::kBilinear
                                                      : Filter::kAuto;
    out_channels_ = jpeg ? 3 : reader_->channels();
    scaler_->begin({reader_->width(), reader_->height(), reader_->channels(), width_, height, out_channels_, filter,
                    watermark_, opacity_},
                   synthetic_ > 0);
    row_.resize(size_t{reader_->width()} * reader_->channels());
    out_rows_ = 0;
    out_height_ = height;
    phase_ = Phase::kRows;
    if (synthetic_ > 0 && images_ > 0) return;  // the same result again: one file of it is enough
    // Never two results under one name: another format is appended, not exchanged.
    auto name = file().filename().string();
    if (jpeg != (source_format_ == Format::kJpeg)) name += jpeg ? ".jpg" : ".png";
    writer_ = create_writer((out_dir_ / name).string(), jpeg ? Format::kJpeg : Format::kPng, width_, height,
                            out_channels_, quality_);
  }

  void row() {
    if (scaler_->wants_row()) {
      reader_->read_row(row_.data());
      scaler_->put(row_.data());
      return;
    }
    if (!scaler_->work()) return;
    if (writer_) {
      writer_->write_row(scaler_->get());
      if (++out_rows_ < out_height_) return;
      writer_->finish();
    } else if (!scaler_->keeps_synthetic()) {
      scaler_->get();  // to have it computed
      if (++out_rows_ < out_height_) return;
    }
    megapixels_ += 1e-6 * reader_->width() * reader_->height();
    metric("images", static_cast<double>(++images_));
    metric("megapixels", megapixels_);
    drop_picture();
  }

  void drop_picture() {
    writer_.reset();
    scaler_->end();
    reader_.reset();
    if (phase_ != Phase::kRender) phase_ = Phase::kOpen;
  }

  void skip(const std::string& why) {
    metric("skipped", static_cast<double>(++skipped_));
    ++skipped_this_pass_;
    if (passes_ == 0) warn("skipped " + file().string() + ": " + why);  // once, not on every pass
    drop_picture();
  }

  // True when there is nothing left to do.
  bool end_pass() {
    if (skipped_this_pass_ == files_.size())
      throw freeride::TaskError("none of the pictures in " + in_dir_.string() + " can be used");
    metric("passes", static_cast<double>(++passes_));
    skipped_this_pass_ = 0;
    next_ = 0;
    if (!repeat_) next_ = files_.size();
    return !repeat_;
  }

  void list_pictures() {
    std::error_code error;
    for (auto it = fs::directory_iterator(in_dir_, error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      auto extension = it->path().extension().string();
      for (auto& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      // Regular files only: opening a named pipe would wait for ever.
      std::error_code ignored;
      const bool wanted = extension == ".jpg" || extension == ".jpeg" || extension == ".png";
      if (wanted && it->is_regular_file(ignored)) files_.push_back(it->path());
    }
    if (error) throw freeride::Unavailable("cannot read the folder " + in_dir_.string() + ": " + error.message());
    if (files_.empty()) throw freeride::Unavailable("no .jpg, .jpeg or .png file in " + in_dir_.string());
    std::sort(files_.begin(), files_.end());
    log(std::to_string(files_.size()) + " pictures in " + in_dir_.string());
  }

  static void make_folder(const fs::path& path) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) throw freeride::Unavailable("cannot make the folder " + path.string() + ": " + error.message());
  }

  uint64_t max_pixels() const { return max_megapixels_ * 1000000; }

  std::unique_ptr<Scaler> scaler_;
  fs::path in_dir_;
  fs::path out_dir_;
  std::vector<fs::path> files_;
  size_t next_ = 0;  // files_ begun in this pass
  Phase phase_ = Phase::kOpen;
  unsigned rendered_ = 0;
  uint32_t rendered_rows_ = 0;

  // The picture in work.
  Format source_format_ = Format::kJpeg;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<Writer> writer_;
  std::vector<uint8_t> row_;
  unsigned out_channels_ = 3;
  uint32_t out_rows_ = 0;
  uint32_t out_height_ = 0;

  uint64_t images_ = 0;
  uint64_t skipped_ = 0;
  uint64_t skipped_this_pass_ = 0;
  uint64_t passes_ = 0;
  double megapixels_ = 0;
};

}  // namespace
}  // namespace image

FREERIDE_PLUGIN(image::Image, "image", "0.1.0", "resizes the pictures of a folder and puts a watermark on them")
