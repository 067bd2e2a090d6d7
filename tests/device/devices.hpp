// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Which GPUs the ranks of a device test use, as a test parameter.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace eptransport::support {

/// The GPU of each rank. Instances on several GPUs are named `TwoGpus..` and get the label `gpu2`:
/// where there is one GPU they fail, and are not run by its preset.
struct rank_devices {
  std::vector<int> of_rank;

  friend std::ostream& operator<<(std::ostream& out, const rank_devices& d) {
    for (std::size_t r = 0; r < d.of_rank.size(); ++r) {
      out << (r == 0 ? "rank 0 on GPU " : ", rank ") << (r == 0 ? "" : std::to_string(r) + " on ")
          << d.of_rank[r];
    }
    return out;
  }
};

inline const rank_devices one_gpu{{0, 0}};
inline const rank_devices two_gpus{{0, 1}};

}  // namespace eptransport::support
