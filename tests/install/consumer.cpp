// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The program that each way of consuming the library must build and run.
#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/eptransport.hpp>

int main() {
  return 0;
}
