// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief libFuzzer target: the bootstrap's frame parser and every payload it can carry.
///
/// Beyond not crashing: a stream gives the same frames however it is cut, a frame that was read has
/// the bytes that were sent, what a payload reader accepts it writes again byte for byte, and the
/// memory that a stranger makes us keep is bounded.
#include <eptransport/proxy/bootstrap/detail/frame.hpp>
#include <eptransport/proxy/bootstrap/detail/payload.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace eptransport::bootstrap_detail;
using bytes = std::span<const std::byte>;

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Payload>
void check_payload(bytes given) {
  Payload read;
  if (!read.read(given)) return;
  const std::vector<std::byte> again = read.write();
  require(std::equal(again.begin(), again.end(), given.begin(), given.end()));
}

void check_payloads(bytes given) {
  check_payload<hello_payload>(given);
  check_payload<challenge_payload>(given);
  check_payload<proof_payload>(given);
  check_payload<welcome_payload>(given);
  check_payload<notice_payload>(given);
  check_payload<part_payload>(given);
  check_payload<parts_payload>(given);
  check_payload<identity_payload>(given);
}

struct outcome {
  std::vector<std::byte> frames;  ///< encoded again, one after the other
  bool broken = false;
  std::string why;
};

/// Feeds a stream in pieces of `piece` bytes.
outcome parse(bytes stream, std::uint32_t limit, std::size_t piece, bool payloads) {
  outcome got;
  frame_parser parser(limit);
  frame next;
  while (!stream.empty() && !got.broken) {
    const std::size_t size = std::min(piece, stream.size());
    parser.push(stream.first(size));
    stream = stream.subspan(size);
    parse_state state = parser.next(next);
    for (; state == parse_state::ready; state = parser.next(next)) {
      require(next.payload.size() <= limit);
      const auto again = encode(next.kind, next.call, next.payload);
      got.frames.insert(got.frames.end(), again.begin(), again.end());
      if (payloads) check_payloads(next.payload);
    }
    got.broken = state == parse_state::broken;
  }
  got.why = parser.why();
  return got;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const bytes stream = std::as_bytes(std::span(data + 2, size - 2));
  if (data[0] % 4 == 0) {
    check_payloads(stream);
    return 0;
  }
  const std::uint32_t limit = data[0] % 2 == 0 ? stranger_limit : payload_limit;
  const outcome whole = parse(stream, limit, stream.size(), true);
  const outcome cut = parse(stream, limit, 1U + data[1], false);
  require(whole.frames == cut.frames);
  require(whole.broken == cut.broken && whole.why == cut.why);
  // What was read is the beginning of what was sent.
  require(whole.frames.size() <= stream.size());
  require(std::equal(whole.frames.begin(), whole.frames.end(), stream.begin()));
  return 0;
}
