// Counting the labels of a map, and putting them where an id map is free.
#include <algorithm>

#include "../label_rows.h"
#include "common.h"

namespace seamseg {
namespace {

constexpr int64_t kGrain = 1 << 16;
Tensor count_labels(const Tensor& labels, int64_t n, const std::optional<Tensor>& id_map) {
  STD_TORCH_CHECK(n >= 0 && n <= (1 << 24), "count_labels: n must be 0 to 2^24");
  STD_TORCH_CHECK(!id_map.has_value() || (id_map->is_cpu() && same_shape(*id_map, labels)),
                  "count_labels: id_map must have the shape of labels and be on its device");
  const Tensor source = torch::stable::contiguous(labels);
  std::optional<Tensor> map;
  if (id_map.has_value()) map = torch::stable::contiguous(*id_map);
  Tensor result = torch::stable::new_empty(labels, {n}, ScalarType::Long);
  const int64_t count = source.numel();
  const int64_t threads = torch::stable::get_num_threads();
  const int64_t parts = std::max<int64_t>(1, std::min({threads, count / kGrain, count / (n + 1)}));

  // Every part counts into tables of its own.
  std::vector<std::vector<int64_t>> counts(parts);
  const auto count_with = [&](const auto* values, const auto* ids) {
    torch::stable::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        counts[part].assign((n + 1) * kTables, 0);
        count_range(values, ids, count * part / parts, count * (part + 1) / parts, n, counts[part].data());
      }
    });
  };
  dispatch_integer(source, "count_labels", [&](auto label) {
    using Label = decltype(label);
    if (!map.has_value()) return count_with(data<Label>(source), static_cast<const uint8_t*>(nullptr));
    dispatch_integer(*map, "count_labels", [&](auto id) { count_with(data<Label>(source), data<decltype(id)>(*map)); });
  });
  int64_t* out = mutable_data<int64_t>(result);
  std::fill_n(out, n, int64_t{0});
  for (const auto& part : counts) {
    for (int64_t i = 0; i < n * kTables; ++i) out[i / kTables] += part[i];
  }
  return result;
}

void fill_free(Tensor id_map, const Tensor& labels, const Tensor& ids) {
  STD_TORCH_CHECK(labels.is_cpu() && ids.is_cpu() && same_shape(id_map, labels),
                  "fill_free: id_map must have the shape of labels, and all must be on one device");
  STD_TORCH_CHECK(ids.dim() == 1 && ids.scalar_type() == ScalarType::Long, "fill_free: ids must be n int64");
  STD_TORCH_CHECK(id_map.scalar_type() != ScalarType::Bool, "fill_free: id_map must be an integer tensor");
  const Tensor target = torch::stable::contiguous(id_map), source = torch::stable::contiguous(labels);
  const Tensor wanted = torch::stable::contiguous(ids);
  const int64_t n = wanted.numel();
  dispatch_integer(target, "fill_free", [&](auto id) {
    using Id = decltype(id);
    std::vector<Id> table(n + 1, Id{0});
    for (int64_t i = 0; i < n; ++i) table[i] = static_cast<Id>(data<int64_t>(wanted)[i]);
    dispatch_integer(source, "fill_free", [&](auto label) {
      using Label = decltype(label);
      Id* to = mutable_data<Id>(target);
      const Label* from = data<Label>(source);
      // Threads write pixels of their own.
      torch::stable::parallel_for(0, target.numel(), kGrain, [&](int64_t begin, int64_t end) {
        fill_range(to + begin, from + begin, end - begin, table.data(), n);
      });
    });
  });
  if (!id_map.is_contiguous()) torch::stable::copy_(id_map, target);
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("count_labels", TORCH_BOX(&seamseg::count_labels));
  m.impl("fill_free", TORCH_BOX(&seamseg::fill_free));
}
