#include "comm/flight_dump.hpp"

#include <exception>
#include <system_error>

#include "base/write_signals.hpp"
#include "comm/text_of.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {

int save_dump(const char* path, const DumpAuthor& author, const DumpCause& cause,
              const std::vector<ThreadReport>* threads, DumpRoom& room) noexcept {
  const WriteSignalsHeld no_signal;
  auto& file = room.file.emplace(path);
  int error = file.open();
  if (error == 0) {
    auto& json = room.json.emplace(file.descriptor());
    write_dump(json, author, cause, threads);
    error = json.finish();
  }
  if (error == 0) error = file.commit();
  room.file.reset();
  return error;
}

std::string dump_with_threads(const DumpAuthor& author, const DumpCause& cause, std::string_view part,
                              const std::string& path) {
  const auto threads = thread_reports();
  const auto& to = path.empty() ? author.path : path;
  DumpRoom room;
  if (const int error = save_dump(to.c_str(), author, cause, &threads, room); error != 0)
    throw Error(author.origin, part, "cannot write " + to + ": " + std::generic_category().message(error),
                "set DDP_DUMP_DIR to a folder that can be written");
  return to;
}

std::string dump_or_warn(const DumpCause& cause) noexcept {
  try {
    const auto author = CurrentAuthor::copy();
    return author ? dump_with_threads(*author, cause, "dump of this rank's calls") : std::string();
  } catch (const std::exception& error) {
    log::all.warn("{}", text_of(error));
  }
  return {};
}

}  // namespace ddp::comm
