#include "comm/interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <system_error>

#include "ddp/error.hpp"

namespace ddp::comm {
namespace {

using Addresses = std::vector<InterfaceAddress>;

constexpr std::string_view kName = "GLOO_SOCKET_IFNAME";

std::string listed(const Addresses& all) {
  std::string text;
  for (auto one = all.begin(); one != all.end(); ++one) {
    const bool is_first = std::none_of(all.begin(), one, [&](const auto& o) { return o.interface == one->interface; });
    if (!is_first) continue;
    std::string addresses;
    for (const auto& other : all)
      if (other.interface == one->interface && !other.address.empty())
        addresses += (addresses.empty() ? "" : ", ") + other.address;
    text += (text.empty() ? "" : ", ") + one->interface + " (" + (addresses.empty() ? "no address" : addresses) + ')';
  }
  return text.empty() ? "none" : text;
}

[[noreturn]] void reject(std::string_view value, const std::string& what, const Addresses& all) {
  throw ConfigError({}, "environment", std::string(kName) + '=' + std::string(value) + ": " + what,
                    "the interfaces of this host that are up: " + listed(all));
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    auto part = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

/// The numeric form that the kernel's addresses have; none for what is no address.
std::optional<std::string> as_address(const std::string& text) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (::getaddrinfo(text.c_str(), nullptr, &hints, &list) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  char numeric[NI_MAXHOST];
  if (::getnameinfo(list->ai_addr, list->ai_addrlen, numeric, sizeof numeric, nullptr, 0, NI_NUMERICHOST) != 0)
    return std::nullopt;
  return numeric;
}

InterfaceAddress named(std::string_view value, const std::string& entry, const Addresses& all) {
  const auto address = as_address(entry);
  const InterfaceAddress* found = nullptr;
  bool exists = false;
  for (const auto& one : all) {
    const bool fits = address ? one.address == *address : one.interface == entry;
    exists = exists || fits;
    if (fits && !one.address.empty() && (found == nullptr || (found->is_v6 && !one.is_v6))) found = &one;
  }
  if (found != nullptr) return *found;
  // All of 127.0.0.0/8 is the loopback's.
  if (address && address->starts_with("127.")) {
    const auto loopback = std::find_if(all.begin(), all.end(), [](const auto& one) { return one.is_loopback; });
    if (loopback != all.end()) return {loopback->interface, *address, false, true};
  }
  if (exists) reject(value, "interface " + entry + " has no address", all);
  reject(value, address ? entry + " is no address of this host" : "there is no interface " + entry, all);
}

Addresses without(std::string_view value, std::vector<std::string> prefixes, const Addresses& all,
                  const InterfaceChoice& choice) {
  for (auto& prefix : prefixes)
    if (prefix.starts_with('^')) prefix.erase(0, 1);  // "^docker,^veth" is meant like "^docker,veth"
  std::erase(prefixes, "");
  if (prefixes.empty()) reject(value, "it names nothing after the ^", all);
  Addresses left;
  for (const auto& one : all) {
    const bool is_excluded = std::any_of(prefixes.begin(), prefixes.end(),
                                         [&](const auto& prefix) { return one.interface.starts_with(prefix); });
    if (!is_excluded && !one.address.empty() && !(choice.peers_remote && one.is_loopback)) left.push_back(one);
  }
  if (left.empty())
    reject(value,
           std::string("it excludes every interface that has an address") +
               (choice.peers_remote ? " which other hosts can reach" : ""),
           all);
  const auto worth = [&](const InterfaceAddress& one) {
    return (one.address == choice.usual ? 4 : 0) + (one.is_loopback ? 0 : 2) + (one.is_v6 ? 0 : 1);
  };
  const auto best =
      std::max_element(left.begin(), left.end(), [&](const auto& a, const auto& b) { return worth(a) < worth(b); });
  return {*best};
}

}  // namespace

Addresses host_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw std::system_error(errno, std::generic_category(), "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  Addresses all;
  for (const auto* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    InterfaceAddress one{.interface = entry->ifa_name, .is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0};
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    one.is_v6 = family == AF_INET6;
    const bool link_only =
        one.is_v6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr);
    char numeric[NI_MAXHOST];
    const socklen_t length = one.is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if ((family == AF_INET || one.is_v6) && !link_only &&
        ::getnameinfo(entry->ifa_addr, length, numeric, sizeof numeric, nullptr, 0, NI_NUMERICHOST) == 0)
      one.address = numeric;
    all.push_back(std::move(one));
  }
  return all;
}

Addresses chosen_interfaces(std::string_view value, const Addresses& all, const InterfaceChoice& choice) {
  const auto entries = split(value);
  if (entries.empty()) reject(value, "it names nothing", all);
  if (entries[0].starts_with('^')) return without(value, entries, all, choice);
  Addresses chosen;
  for (const auto& entry : entries) {
    if (entry.starts_with('^'))
      reject(value, "it names interfaces both to use and, after ^, not to use; a list is of one kind", all);
    chosen.push_back(named(value, entry, all));
    if (choice.peers_remote && chosen.back().is_loopback)
      reject(value,
             chosen.back().interface + " (" + chosen.back().address +
                 ") is a loopback, which ranks on other hosts cannot reach",
             all);
  }
  return chosen;
}

}  // namespace ddp::comm
