// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The libfabric endpoint: set-up, posts, completions. Included by libfabric.hpp.
#pragma once

#include <eptransport/proxy/endpoints/libfabric.hpp>

namespace eptransport::proxy {

namespace detail {

/// A key where the provider leaves the choice to us: unique in its domain, or unguessable.
[[nodiscard]] inline std::uint64_t next_key(fabric_domain& domain) {
  if (domain.mode(FI_MR_PROV_KEY)) return 0;
  if (!domain.strict) return domain.next_key++;
  std::random_device random;
  std::uint64_t key = (std::uint64_t{random()} << 32 | random()) ^ domain.next_key++;
  const std::size_t bytes = domain.info->domain_attr->mr_key_size;
  if (bytes != 0 && bytes < sizeof key) key &= (std::uint64_t{1} << (8 * bytes)) - 1;
  return key;
}

/// Registers memory; with `FI_MR_ENDPOINT` for one endpoint alone.
[[nodiscard]] inline result<fabric_owner<fid_mr>> register_memory(fabric_domain& domain, fid_ep* ep,
                                                                  std::span<std::byte> memory,
                                                                  std::uint64_t access) {
  fid_mr* made = nullptr;
  const std::string what = std::to_string(memory.size()) + " bytes";
  int failed = fi_mr_reg(domain.domain.get(), memory.data(), memory.size(), access, 0,
                         next_key(domain), 0, &made, nullptr);
  if (failed != 0) return fabric_failure(failed, "fi_mr_reg", what);
  fabric_owner<fid_mr> owner(made);
  if (domain.mode(FI_MR_ENDPOINT)) {
    failed = fi_mr_bind(made, &ep->fid, 0);
    if (failed == 0) failed = fi_mr_enable(made);
    if (failed != 0) return fabric_failure(failed, "fi_mr_enable", what);
  }
  return result<fabric_owner<fid_mr>>(std::move(owner));
}

inline constexpr std::uint64_t window_access = FI_WRITE | FI_SEND | FI_REMOTE_WRITE;
inline constexpr std::uint64_t buffer_access = FI_SEND | FI_RECV;

}  // namespace detail

inline result<void> libfabric_endpoint::open(const fabric_options& options) {
  fi_info& info = *domain_->info;
  fid_domain* const domain = domain_->domain.get();
  fi_cq_attr queue{};
  queue.size = options.completions;
  queue.format = FI_CQ_FORMAT_DATA;
  queue.wait_obj = FI_WAIT_NONE;
  fid_cq* cq = nullptr;
  if (const int failed = fi_cq_open(domain, &queue, &cq, nullptr); failed != 0) {
    return detail::fabric_failure(failed, "fi_cq_open",
                                  std::to_string(options.completions) + " entries");
  }
  queue_.reset(cq);
  fi_av_attr vector{};
  vector.type = info.domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info.domain_attr->av_type;
  fid_av* av = nullptr;
  int failed = fi_av_open(domain, &vector, &av, nullptr);
  if (failed != 0) {
    vector.type = FI_AV_MAP;
    failed = fi_av_open(domain, &vector, &av, nullptr);
  }
  if (failed != 0) return detail::fabric_failure(failed, "fi_av_open");
  vector_.reset(av);
  fid_ep* ep = nullptr;
  if (failed = fi_endpoint(domain, &info, &ep, nullptr); failed != 0) {
    return detail::fabric_failure(failed, "fi_endpoint", info.fabric_attr->prov_name);
  }
  endpoint_.reset(ep);
  failed = fi_ep_bind(ep, &av->fid, 0);
  if (failed == 0) failed = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV);
  if (failed != 0) return detail::fabric_failure(failed, "fi_ep_bind");
  if (failed = fi_enable(ep); failed != 0) return detail::fabric_failure(failed, "fi_enable");
  fid_mr* window = domain_->window.get();
  if (window == nullptr) {
    auto made = detail::register_memory(*domain_, ep, window_, detail::window_access);
    if (!made) return made.error();
    own_window_ = std::move(*made);
    window = own_window_.get();
  }
  window_key_ = fi_mr_key(window);
  if (window_key_ == FI_KEY_NOTAVAIL) {
    return failure{errc::unsupported, "fi_mr_key",
                   std::string(info.fabric_attr->prov_name) + " has no 64-bit key for the window"};
  }
  window_descriptor_ = fi_mr_desc(window);
  if (domain_->mode(FI_MR_VIRT_ADDR)) {
    window_base_ = reinterpret_cast<std::uintptr_t>(window_.data());
  }
  return set_limits(options);
}

inline result<void> libfabric_endpoint::set_limits(const fabric_options& options) {
  const fi_info& info = *domain_->info;
  limits_.max_message = info.ep_attr->max_msg_size;
  limits_.max_send = info.ep_attr->max_msg_size;
#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 22
  // EFA's lowest fabric sends 8 KiB and writes a GiB: one number cannot say both.
  std::size_t bytes = 0;
  std::size_t length = sizeof bytes;
  if (fi_getopt(&endpoint_->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_RMA_SIZE, &bytes, &length) == 0) {
    limits_.max_message = bytes;
  }
  if (fi_getopt(&endpoint_->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE, &bytes, &length) == 0) {
    limits_.max_send = bytes;
  }
#endif
  if (domain_->strict) limits_.max_send = std::min(limits_.max_send, strict_max_send);
  limits_.immediate_bits =
      static_cast<int>(std::min<std::size_t>(info.domain_attr->cq_data_size, 4) * 8);
  const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(info.tx_attr->size, 1U << 16));
  if (options.operations > most) {
    return failure{errc::unsupported, "fabric_options",
                   std::to_string(options.operations) + " operations in flight, the provider " +
                       "takes " + std::to_string(most)};
  }
  limits_.operations = options.operations == 0 ? most : options.operations;
  limits_.completions = options.completions;
  limits_.batch = 16;
  operations_.resize(limits_.operations);
  for (operation& op : operations_) free_.push_back(&op);
  return {};
}

inline result<std::vector<std::byte>> libfabric_endpoint::name() const {
  std::vector<std::byte> name(256);
  std::size_t bytes = name.size();
  int failed = fi_getname(&endpoint_->fid, name.data(), &bytes);
  if (failed == -FI_ETOOSMALL) {
    name.resize(bytes);
    failed = fi_getname(&endpoint_->fid, name.data(), &bytes);
  }
  if (failed != 0) return detail::fabric_failure(failed, "fi_getname");
  name.resize(bytes);
  return name;
}

inline result<void> libfabric_endpoint::insert(std::span<const std::byte> address,
                                               std::uint64_t base, std::uint64_t key) {
  remote_window peer{.base = base, .key = key};
  const int inserted = fi_av_insert(vector_.get(), address.data(), 1, &peer.address, 0, nullptr);
  if (inserted != 1) {
    return detail::fabric_failure(inserted < 0 ? inserted : -FI_EADDRNOTAVAIL, "fi_av_insert",
                                  "rank " + std::to_string(peers_.size()));
  }
  peers_.push_back(peer);
  return {};
}

inline result<void> libfabric_endpoint::attach(std::span<std::byte> memory) {
  if (attached_) {
    return failure{errc::misuse, "libfabric_endpoint::attach",
                   "a second engine; an endpoint serves one, open new ports"};
  }
  attached_ = true;
  memory_ = memory;
  if (memory.empty() || !domain_->mode(FI_MR_LOCAL)) return {};
  auto made = detail::register_memory(*domain_, endpoint_.get(), memory, detail::buffer_access);
  if (!made) return made.error();
  buffers_ = std::move(*made);
  buffers_descriptor_ = fi_mr_desc(buffers_.get());
  return {};
}

inline void libfabric_endpoint::detach() noexcept {
  if (attached_) close();
}

/// Takes what still arrives, until nothing has for a while. To close one of its connections,
/// ofi_rxm handles the completions of all, also of those that it has closed: a null call in 1.17
/// (libfabric's pull request 12674).
inline void libfabric_endpoint::settle() noexcept {
  if (!endpoint_ || !over_rxm()) return;
  using clock = std::chrono::steady_clock;
  constexpr auto still = std::chrono::milliseconds(2);
  const auto limit = clock::now() + std::chrono::milliseconds(100);
  std::array<fi_cq_data_entry, 64> entries;
  for (auto last = clock::now(), now = last; now < limit && now - last < still;
       now = clock::now()) {
    const ssize_t n = fi_cq_read(queue_.get(), entries.data(), entries.size());
    fi_cq_err_entry error{};
    const bool failed = n == -FI_EAVAIL && fi_cq_readerr(queue_.get(), &error, 0) > 0;
    if (n > 0 || failed) last = now;
  }
}

/// In the order that fi_endpoint(3) asks for: the endpoint before its queue, its address vector
/// and, where it uses them unbound, its registrations.
inline void libfabric_endpoint::close() noexcept {
  settle();
  if (domain_->mode(FI_MR_ENDPOINT)) {  // it cannot go while registrations are bound to it
    buffers_.reset();
    own_window_.reset();
  }
  endpoint_.reset();
  buffers_.reset();
}

inline bool libfabric_endpoint::registered(const std::byte* data,
                                           std::uint64_t bytes) const noexcept {
  const auto within = [&](std::span<std::byte> memory) {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
    return at >= start && at - start <= memory.size() && bytes <= memory.size() - (at - start);
  };
  return bytes == 0 || within(window_) || within(memory_);
}

inline libfabric_endpoint::operation* libfabric_endpoint::take(completion_kind kind,
                                                               std::uint32_t context,
                                                               std::uint32_t peer) {
  if (free_.empty()) return nullptr;
  operation* const op = free_.back();
  free_.pop_back();
  op->context = context;
  op->peer = peer;
  op->kind = kind;
  return op;
}

inline post_result libfabric_endpoint::fail(std::uint32_t peer, int code) noexcept {
  if (failed_.kind != completion_kind::error) {
    failed_ = {.kind = completion_kind::error, .peer = peer, .code = code};
  }
  return post_result::failed;
}

inline post_result libfabric_endpoint::posted(long returned, operation* op) {
  if (returned == 0) return post_result::posted;
  free_.push_back(op);
  if (returned == -FI_EAGAIN) return post_result::again;
  return fail(op->peer, static_cast<int>(-returned));
}

inline post_result libfabric_endpoint::receive(std::byte* slot, std::uint64_t bytes,
                                               std::uint32_t context) {
  while (receives_.size() <= context) receives_.push_back(std::make_unique<operation>());
  operation& op = *receives_[context];
  op.context = context;
  op.kind = completion_kind::message;
  const long returned =
      fi_recv(endpoint_.get(), slot, bytes, buffers_descriptor_, FI_ADDR_UNSPEC, &op.libfabric);
  if (returned == 0) return post_result::posted;
  if (returned == -FI_EAGAIN) return post_result::again;
  return fail(unknown_peer, receive_failed | static_cast<int>(-returned));
}

inline post_result libfabric_endpoint::write(const write_post& post) {
  if (refuse_posts_) return fail(post.peer, told_to_refuse);
  if (domain_->strict && !registered(post.src, post.bytes)) {
    return fail(post.peer, unregistered_source);
  }
  operation* const op = take(completion_kind::write, post.context, post.peer);
  if (op == nullptr) return post_result::again;
  const remote_window& peer = peers_[post.peer];
  // A write without bytes still names a place: some providers check it.
  const std::byte* const from = post.bytes == 0 ? window_.data() : post.src;
  const std::uint64_t to = peer.base + (post.bytes == 0 ? 0 : post.dst_offset);
  fid_ep* const ep = endpoint_.get();
  if (post.more) {
    iovec local{const_cast<std::byte*>(from), post.bytes};
    void* descriptor = window_descriptor_;
    fi_rma_iov remote{to, post.bytes, peer.key};
    const fi_msg_rma message{&local,         &descriptor,   1, peer.address, &remote, 1,
                             &op->libfabric, post.immediate};
    const std::uint64_t data = post.has_immediate ? FI_REMOTE_CQ_DATA : 0;
    return posted(fi_writemsg(ep, &message, FI_MORE | FI_COMPLETION | data), op);
  }
  if (!post.has_immediate) {
    return posted(fi_write(ep, from, post.bytes, window_descriptor_, peer.address, to, peer.key,
                           &op->libfabric),
                  op);
  }
  return posted(fi_writedata(ep, from, post.bytes, window_descriptor_, post.immediate, peer.address,
                             to, peer.key, &op->libfabric),
                op);
}

inline post_result libfabric_endpoint::send(const send_post& post) {
  if (refuse_posts_) return fail(post.peer, told_to_refuse);
  if (domain_->strict && !registered(post.data, post.bytes)) {
    return fail(post.peer, unregistered_source);
  }
  operation* const op = take(completion_kind::send, post.context, post.peer);
  if (op == nullptr) return post_result::again;
  const fi_addr_t to = peers_[post.peer].address;
  if (post.more) {
    iovec local{const_cast<std::byte*>(post.data), post.bytes};
    void* descriptor = buffers_descriptor_;
    const fi_msg message{&local, &descriptor, 1, to, &op->libfabric, 0};
    return posted(fi_sendmsg(endpoint_.get(), &message, FI_MORE | FI_COMPLETION), op);
  }
  return posted(
      fi_send(endpoint_.get(), post.data, post.bytes, buffers_descriptor_, to, &op->libfabric), op);
}

inline completion libfabric_endpoint::finish(operation* op) {
  const completion done{.kind = op->kind, .context = op->context};
  free_.push_back(op);
  return done;
}

/// The flags of an arrival differ between providers; `sockets` even marks local completions as
/// carrying data. What holds everywhere: an arrived write has FI_REMOTE_WRITE, a message FI_RECV.
inline completion libfabric_endpoint::translate(const fi_cq_data_entry& entry) {
  if ((entry.flags & FI_REMOTE_WRITE) != 0) {
    return {.kind = completion_kind::immediate,
            .immediate = static_cast<std::uint32_t>(entry.data)};
  }
  auto* const op = static_cast<operation*>(entry.op_context);
  if ((entry.flags & FI_RECV) != 0) {
    return {.kind = completion_kind::message, .context = op->context, .bytes = entry.len};
  }
  return finish(op);
}

inline completion libfabric_endpoint::read_error() {
  fi_cq_err_entry error{};
  if (fi_cq_readerr(queue_.get(), &error, 0) < 0) error.err = FI_EOTHER;
  const char* const says =
      fi_cq_strerror(queue_.get(), error.prov_errno, error.err_data, nullptr, 0);
  provider_says_ = says == nullptr ? "" : says;
  completion out{.kind = completion_kind::error, .peer = unknown_peer, .code = error.err};
  // Arrivals that went wrong have no operation of ours.
  if (error.op_context == nullptr || (error.flags & FI_REMOTE_WRITE) != 0) return out;
  auto* const op = static_cast<operation*>(error.op_context);
  if (op->kind == completion_kind::message) return out;
  out.peer = op->peer;
  free_.push_back(op);
  return out;
}

inline std::size_t libfabric_endpoint::poll(std::span<completion> out) {
  if (out.empty()) return 0;
  if (failed_.kind == completion_kind::error) {
    out[0] = std::exchange(failed_, {});
    return 1;
  }
  std::array<fi_cq_data_entry, 64> entries;
  const std::size_t most = std::min(out.size(), entries.size());
  const ssize_t n = fi_cq_read(queue_.get(), entries.data(), most);
  if (n == -FI_EAGAIN) return 0;
  if (n == -FI_EAVAIL) {
    out[0] = read_error();
    return 1;
  }
  if (n < 0) {
    out[0] = {.kind = completion_kind::error, .peer = unknown_peer, .code = static_cast<int>(-n)};
    return 1;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) out[i] = translate(entries[i]);
  return static_cast<std::size_t>(n);
}

inline std::string libfabric_endpoint::describe(int code) const {
  if (code == unregistered_source) return "the source lies in no registered memory";
  if (code == told_to_refuse) return "the endpoint was told to refuse posts";
  if ((code & receive_failed) != 0) {
    return "a receive slot was refused: " + describe(code & ~receive_failed);
  }
  const std::string provider = domain_->info->fabric_attr->prov_name;
  std::string text = provider + ": " + fi_strerror(code);
  if (!provider_says_.empty() && provider_says_ != fi_strerror(code)) {
    text += " (" + provider_says_ + ")";
  }
  return text;
}

}  // namespace eptransport::proxy

// check: includes the ports use what stands above
#include <eptransport/proxy/endpoints/detail/fabric_ports_impl.hpp>
