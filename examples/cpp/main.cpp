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

#include <cmath>
#include <fstream>
#include <iostream>
#include <regex>
#include <stdexcept>

#include "json.h"

using at::Tensor;
using torch::inductor::AOTIModelPackageLoader;

// What a package states about its network: the JSON text under "seamseg".
struct Metadata {
  Json json;

  explicit Metadata(const std::string& package) {
    // only reads the file: loading it runs the code in it
    const std::string text = AOTIModelPackageLoader::load_metadata_from_package(package, "model")["seamseg"];
    if (text.empty()) throw std::runtime_error(package + ": was not exported by seamseg");
    json = JsonReader(text).document();
    if (json["kind"].as<std::string>() != "panoptic" || json["part"].as<std::string>() != "all")
      throw std::runtime_error(package + ": no panoptic network");
    if (json["size"].is_null()) throw std::runtime_error(package + ": has no fixed size: export it with --size");
  }

  double threshold(const std::string& name) const { return json["thresholds"][name].as<double>(); }
  const Json::List& categories() const { return json["metadata"]["categories"].as<Json::List>(); }
  // Height or width of the network's input.
  int64_t size(int axis) const { return static_cast<int64_t>(json["size"].as<Json::List>().at(axis).as<double>()); }

  // A number in section [dataloader] of the configuration, the text of an INI file; 0 if it is not set.
  double option(const std::string& name) const {
    const std::string& config = json["config"].as<std::string>();
    const std::regex line("(?:^|\n)\\[dataloader\\]\n(?:[^[\n][^\n]*\n|\n)*?" + name + " *= *([0-9]+)");
    std::smatch match;
    return std::regex_search(config, match, line) ? std::stod(match[1]) : 0;
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
  const auto num_stuff = static_cast<int64_t>(metadata.json["metadata"]["num_stuff"].as<double>());
  const int64_t count = outputs[4].item<int64_t>();
  const Tensor scores = outputs[2].narrow(0, 0, count);
  Tensor kept = at::nonzero(scores > metadata.threshold("score_threshold")).flatten();
  kept = kept.index_select(0, at::argsort(scores.index_select(0, kept), /*stable=*/true, 0, /*descending=*/true));
  std::vector<Segment> segments;
  if (kept.numel() > 0) {
    const Tensor masks = outputs[3].index_select(0, kept).sigmoid(), boxes = outputs[0].index_select(0, kept);
    const Tensor placed =
        op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, int64_t, bool)>("seamseg::paste_masks_into")
            .call(ids, masks, boxes, metadata.threshold("overlap_threshold"), /*first_id=*/1, /*keep_empty=*/false);
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
    if (area == 0 || area < metadata.threshold("min_stuff_area")) continue;
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
  const double shortest = metadata.option("shortest_size"), longest = metadata.option("longest_size");
  if (shortest == 0) throw std::runtime_error("the metadata lacks [dataloader] shortest_size");
  const double limit = std::max(4 * shortest, metadata.option("longest_max_size"));
  double scale = longest > 0 ? longest / std::max(height, width) : shortest / std::min(height, width);
  if (longest == 0 && std::floor(std::max(height, width) * scale) > limit) scale = limit / std::max(height, width);
  const double room_height = metadata.size(0), room_width = metadata.size(1);
  if (std::floor(height * scale) > room_height || std::floor(width * scale) > room_width)
    scale = std::min(room_height / height, room_width / width);
  return {std::max<int64_t>(height * scale, 1), std::max<int64_t>(width * scale, 1)};
}

void run(const std::string& library, const std::string& package, const std::string& photo, const std::string& target) {
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
  const Metadata metadata(package);
  const Tensor native = read_ppm(photo);
  const auto [height, width] = scaled_size(native.size(1), native.size(2), metadata);
  Tensor image = at::zeros({1, 3, metadata.size(0), metadata.size(1)}, at::kByte);
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
    const auto name = metadata.categories().at(segments[i].category).as<std::string>();
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
