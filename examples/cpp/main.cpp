// Panoptic segmentation of a photo with an exported network, without Python:
//
//     panoptic LIBRARY PACKAGE.pt2 PHOTO.ppm IDS.pgm
//
// LIBRARY holds the operators of seamseg (seamseg/_C.abi3.so). The program prints the segments and writes the id of each
// pixel (0 is void) as a 16-bit PGM image of the size of the photo. See README.md.
#include <dlfcn.h>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

using at::Tensor;
using torch::inductor::AOTIModelPackageLoader;

// What a package states about its network: texts under "seamseg.NAME".
struct Metadata {
  std::unordered_map<std::string, std::string> texts;

  // only reads the file: loading it runs the code in it
  explicit Metadata(const std::string& package)
      : texts(AOTIModelPackageLoader::load_metadata_from_package(package, "model")) {
    if (texts["seamseg.part"] != "all")
      throw std::runtime_error(package + ": is not a panoptic network, or was exported by an older seamseg: export it again");
    if (texts["seamseg.height"].empty() && texts["seamseg.multiple"].empty())
      throw std::runtime_error(package + ": was exported by an older seamseg: export it again, or with --size");
  }

  std::string text(const std::string& name) const {
    const auto found = texts.find("seamseg." + name);
    if (found == texts.end()) throw std::runtime_error("the metadata lacks " + name);
    return found->second;
  }

  // A number; 0 if it is not set.
  double number(const std::string& name) const {
    double value = 0;
    std::istringstream words(text(name));
    words.imbue(std::locale::classic());
    if (!words.str().empty() && !(words >> value && words.eof()))
      throw std::runtime_error("the metadata has no number as " + name);
    return value;
  }
  int64_t count(const std::string& name) const { return static_cast<int64_t>(number(name)); }

  // Largest height and width of a photo in the input of the network.
  std::pair<double, double> largest() const {
    if (count("height") > 0) return {number("height"), number("width")};
    const double side = count("largest_side") / count("multiple") * count("multiple");
    return {side, side};
  }

  // Height or width of the input, fixed or for a photo of `side` pixels.
  int64_t padded(const char* name, int64_t side) const {
    if (count(name) > 0) return count(name);
    const int64_t multiple = count("multiple");
    return (std::max(side, count("smallest_side")) + multiple - 1) / multiple * multiple;
  }

  std::vector<std::string> categories() const {
    std::vector<std::string> names;
    std::istringstream lines(text("categories"));
    for (std::string line; std::getline(lines, line);) names.push_back(line);
    return names;
  }
};

// 3 x H x W uint8 of a binary PPM file.
Tensor read_ppm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic;
  int64_t width = 0, height = 0, white = 0;
  file >> magic >> width >> height >> white;
  if (!file || magic != "P6" || white != 255 || std::min(width, height) < 1 || std::max(width, height) > 1 << 15)
    throw std::runtime_error(path + ": not a binary PPM image with 8 bits and without comments");
  file.get();
  Tensor pixels = at::empty({height, width, 3}, at::kByte);
  if (!file.read(static_cast<char*>(pixels.data_ptr()), pixels.numel())) throw std::runtime_error(path + ": cut off");
  return pixels.permute({2, 0, 1});
}

void write_pgm(const std::string& path, const Tensor& ids) {
  std::ofstream file(path, std::ios::binary);
  file << "P5\n" << ids.size(1) << " " << ids.size(0) << "\n65535\n";
  const Tensor wide = ids.to(at::kInt).contiguous();
  std::string bytes;
  for (int64_t i = 0; i < wide.numel(); ++i) {
    const int id = wide.const_data_ptr<int>()[i];
    bytes += {static_cast<char>(id >> 8), static_cast<char>(id & 255)};  // the high byte comes first
  }
  if (!file.write(bytes.data(), bytes.size()).flush()) throw std::runtime_error(path + ": cannot be written");
}

template <class Signature>
auto op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

struct Segment {
  int64_t category;
  float score;  // 1 for those of the class map
};

// The fusion of docs/contract.md, section 4, at the size of the network's input; segment i has id i + 1.
std::vector<Segment> fuse(const std::vector<Tensor>& outputs, const Metadata& metadata, Tensor ids) {
  const int64_t num_stuff = metadata.count("num_stuff");
  const int64_t count = outputs[4].item<int64_t>();
  const Tensor scores = outputs[2].narrow(0, 0, count);
  Tensor kept = at::nonzero(scores > metadata.number("score_threshold")).flatten();
  kept = kept.index_select(0, at::argsort(scores.index_select(0, kept), /*stable=*/true, 0, /*descending=*/true));
  std::vector<Segment> segments;
  if (kept.numel() > 0) {
    const Tensor masks = outputs[3].index_select(0, kept).sigmoid(), boxes = outputs[0].index_select(0, kept);
    const Tensor placed =
        op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, int64_t, bool)>("seamseg::paste_masks_into")
            .call(ids, masks, boxes, metadata.number("overlap_threshold"), /*first_id=*/1, /*keep_empty=*/false);
    kept = kept.index({placed});
    for (int64_t i = 0; i < kept.numel(); ++i) {
      const int64_t row = kept[i].item<int64_t>();
      segments.push_back({outputs[1][row].item<int64_t>() + num_stuff, scores[row].item<float>()});
    }
  }
  const Tensor classmap = outputs[5].narrow(0, 0, ids.size(0)).narrow(1, 0, ids.size(1)).contiguous();
  const Tensor areas = op<Tensor(const Tensor&, int64_t, const std::optional<Tensor>&)>("seamseg::count_labels")
                           .call(classmap, static_cast<int64_t>(metadata.categories().size()), ids);
  Tensor id_of_class = at::zeros_like(areas);
  for (int64_t category = 0; category < areas.numel(); ++category) {
    const int64_t area = areas[category].item<int64_t>();
    if (area == 0 || area < metadata.number("min_stuff_area")) continue;
    segments.push_back({category, 1});
    id_of_class[category] = static_cast<int64_t>(segments.size());
  }
  op<void(const Tensor&, const Tensor&, const Tensor&)>("seamseg::fill_free").call(ids, classmap, id_of_class);
  return segments;
}

// The pixels of an axis of `size` pixels that become those of one of `wanted` pixels.
Tensor nearest(int64_t size, int64_t wanted) {
  const double step = static_cast<double>(size) / static_cast<double>(wanted);
  return ((at::arange(wanted, at::kDouble) + .5) * step).floor().clamp_max(size - 1).to(at::kLong);
}

// Height and width of the photo in the input of the network: the longer side gets `longest_size`, or the shorter one
// `shortest_size`, unless the longer one would then exceed its limit.
std::pair<int64_t, int64_t> scaled_size(double height, double width, const Metadata& metadata) {
  const double shortest = metadata.number("shortest_size"), longest = metadata.number("longest_size");
  const double limit = std::max(4 * shortest, metadata.number("longest_max_size"));
  double scale = longest > 0 ? longest / std::max(height, width) : shortest / std::min(height, width);
  if (longest == 0 && std::floor(std::max(height, width) * scale) > limit) scale = limit / std::max(height, width);
  const auto [room_height, room_width] = metadata.largest();
  if (std::floor(height * scale) > room_height || std::floor(width * scale) > room_width)
    scale = std::min(room_height / height, room_width / width);
  return {std::max<int64_t>(height * scale, 1), std::max<int64_t>(width * scale, 1)};
}

void run(const std::string& library, const std::string& package, const std::string& photo, const std::string& target) {
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
  const Metadata metadata(package);
  const Tensor native = read_ppm(photo);
  const auto [height, width] = scaled_size(native.size(1), native.size(2), metadata);
  Tensor image = at::zeros({1, 3, metadata.padded("height", height), metadata.padded("width", width)}, at::kByte);
  image.narrow(2, 0, height).narrow(3, 0, width).copy_(
      at::_upsample_bilinear2d_aa(native.unsqueeze(0), {height, width}, /*align_corners=*/false));

  AOTIModelPackageLoader network(package);
  const std::vector<Tensor> outputs = network.run({image, at::tensor({height, width}, at::kLong)});
  Tensor ids = at::zeros({height, width}, at::kInt);
  const std::vector<Segment> segments = fuse(outputs, metadata, ids);
  ids = ids.index_select(0, nearest(height, native.size(1))).index_select(1, nearest(width, native.size(2)));

  const Tensor areas = at::bincount(ids.flatten(), {}, static_cast<int64_t>(segments.size()) + 1);
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto area = areas[static_cast<int64_t>(i) + 1].item<int64_t>();
    if (area == 0) continue;  // too small for the size of the photo
    const auto name = metadata.categories().at(segments[i].category);
    std::cout << i + 1 << " " << name << " " << segments[i].score << " " << area << "\n";
  }
  write_pgm(target, ids);
}

int main(int count, char** words) {
  if (count != 5) return (std::cerr << "usage: panoptic LIBRARY PACKAGE.pt2 PHOTO.ppm IDS.pgm\n", 2);
  try {
    const c10::InferenceMode guard;
    run(words[1], words[2], words[3], words[4]);
    return 0;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    std::cerr << "panoptic: " << text.substr(0, text.find('\n')) << "\n";
    return 1;
  }
}
