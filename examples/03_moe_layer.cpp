// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A whole mixture-of-experts layer over four ranks, with the routing of a real model.
//
// You learn
//   how dispatch, experts and combine fit together: rows come sorted by expert, each expert works
//   on one contiguous block, and combine weighs the results and returns them to their tokens.
//
// You need
//   a C++20 compiler, and the traces in benchmarks/traces.
//
// Run
//   g++ -std=c++20 -O2 -I include examples/03_moe_layer.cpp -o moe_layer -pthread && ./moe_layer
//
// You see
//   rank 0 sends 32 tokens and receives 298 rows for its experts
//   rank 3 sends 32 tokens and receives 258 rows for its experts
//   largest difference from the dense layer: ... of the bound
//   PASS
#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ept = eptransport;
using wire = ept::profiles::efa_proxy;
constexpr int ranks = 4, tokens = 32, hidden = 256, top_k = 8, experts = 64;

/// The 16-bit values of a .npy file: what follows its header.
std::vector<std::uint16_t> load(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(file), {});
  if (all.size() < 10) std::printf("cannot read %s\n", path.c_str()), std::exit(1);
  const auto byte = [&all](std::size_t i) { return static_cast<unsigned char>(all[i]); };
  std::vector<std::uint16_t> values;
  for (std::size_t i = 10 + byte(8) + byte(9) * 256U; i + 1 < all.size(); i += 2) {
    values.push_back(static_cast<std::uint16_t>(byte(i) + byte(i + 1) * 256U));
  }
  return values;
}

float from_half(std::uint16_t bits) {  // zero and normal numbers; smaller ones become zero
  if ((bits & 0x7FFF) < 0x400) return 0;
  const auto digits = static_cast<float>((bits & 0x3FF) + 1024);
  return std::copysign(std::ldexp(digits, ((bits >> 10) & 31) - 25), bits > 0x7FFF ? -1.F : 1.F);
}

/// The experts: y = relu(a x + b), with an a and a b of their own.
float expert(int e, float x) {
  return std::max(0.F, x * (0.5F + 0.01F * static_cast<float>(e)) + (e % 2 == 0 ? 0.1F : -0.1F));
}

/// One rank's tokens, and what became of them.
struct share {
  std::vector<std::uint16_t> x{}, out = std::vector<std::uint16_t>(tokens * hidden);  // bf16
  std::vector<std::int64_t> index{};
  std::vector<float> weight{};
  std::int64_t received = 0;
};

ept::result<void> run_layer(ept::loopback<wire>& transport, const ept::group_shape& shape,
                            share& mine) {
  auto group = ept::group<ept::loopback<wire>>::create(transport, shape);
  if (!group) return group.error();
  std::vector<std::byte> memory(group->needs().handle_bytes);
  const ept::dispatch_handle handle{memory.data(), memory.size()};
  std::vector<std::uint16_t> rows(ranks * tokens * top_k * hidden), y(rows.size());  // worst case
  std::vector<std::int64_t> count(static_cast<std::size_t>(group->local_experts())), first = count;

  const ept::dispatch_input in{.x = mine.x.data(),
                               .topk_index = mine.index.data(),
                               .topk_weight = mine.weight.data(),
                               .tokens = tokens};
  const ept::dispatch_output out{.layout = ept::output_layout::expert_major,
                                 .rows = rows.data(),
                                 .total = &mine.received,
                                 .expert_count = count.data(),
                                 .expert_offset = first.data()};
  if (auto done = group->dispatch(0, in, out, handle); !done) return done;

  for (std::size_t e = 0; e < count.size(); ++e) {  // one block of rows for each expert of the rank
    const int global = transport.view().rank() * experts / ranks + static_cast<int>(e);
    const auto begin = static_cast<std::size_t>(first[e] * hidden);
    for (std::size_t i = begin; i < begin + static_cast<std::size_t>(count[e] * hidden); ++i) {
      y[i] = ept::float_to_bf16(expert(global, ept::bf16_to_float(rows[i])));
    }
  }
  return group->combine(0, {.y = y.data(), .weights = ept::weighting::at_expert},
                        {.out = mine.out.data()}, handle);
}

/// The largest difference from the dense layer, in parts of its bound: an expert's result, a
/// rank's sum and the total are each rounded to bf16, by at most 2^-8 of themselves.
double compare(const share& mine) {
  double worst = 0;
  for (std::size_t at = 0; at < mine.x.size(); ++at) {
    double sum = 0;
    for (std::size_t j = at / hidden * top_k; j < (at / hidden + 1) * top_k; ++j) {
      const float y = expert(static_cast<int>(mine.index[j]), ept::bf16_to_float(mine.x[at]));
      sum += static_cast<double>(mine.weight[j]) * y;
    }
    const double bound = 3.1 * 0x1p-8 * sum + 1e-30;  // no y and no weight is negative
    worst = std::max(worst, std::abs(ept::bf16_to_float(mine.out[at]) - sum) / bound);
  }
  return worst;
}

int main() {
  const auto traces = std::filesystem::path(__FILE__).parent_path() / "../benchmarks/traces";
  const auto x = load(traces / "moe_e64_x.npy"), index = load(traces / "moe_e64_k8_idx.npy"),
             weight = load(traces / "moe_e64_k8_weights.npy");
  std::vector<share> shares(ranks);
  for (std::size_t i = 0; i < ranks * tokens * hidden; ++i) {
    shares[i / (tokens * hidden)].x.push_back(ept::float_to_bf16(from_half(x.at(i))));
  }
  for (std::size_t i = 0; i < ranks * tokens * top_k; ++i) {
    shares[i / (tokens * top_k)].index.push_back(index.at(i));
    shares[i / (tokens * top_k)].weight.push_back(from_half(weight.at(i)));
  }
  const ept::group_shape shape{tokens, hidden, top_k, experts};
  const auto need = ept::group<ept::loopback<wire>>::sizes(shape, ranks);
  auto world = ept::loopback_world<wire>::create(
      {.ranks = ranks, .window_bytes = need->window_bytes, .signals = need->signals});
  if (!world) return std::printf("%s\n", world.error().message().c_str()), 1;
  std::vector<std::string> errors(ranks);
  (*world)->run([&](ept::loopback<wire>& transport) {
    const auto rank = static_cast<std::size_t>(transport.view().rank());
    if (auto done = run_layer(transport, shape, shares[rank]); !done) {
      errors[rank] = done.error().message();
    }
  });
  double worst = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (!errors[r].empty()) return std::printf("%s\n", errors[r].c_str()), 1;
    std::printf("rank %zu sends %d tokens and receives %d rows for its experts\n", r, tokens,
                static_cast<int>(shares[r].received));
    worst = std::max(worst, compare(shares[r]));
  }
  std::printf("largest difference from the dense layer: %.2f of the bound\n", worst);
  std::puts(worst <= 1 ? "PASS" : "FAIL");
  return worst <= 1 ? 0 : 1;
}
