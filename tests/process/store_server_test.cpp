// ddprun_store serves a job whose rank 0 does not take over the launcher's socket.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/descriptor.hpp"
#include "comm/watch_socket.hpp"
#include "process/launched.hpp"

namespace ddp::test {
namespace {

/// ddprun_store on `socket`; ends once its standard input is closed.
class StoreProgram {
 public:
  explicit StoreProgram(int socket) : StoreProgram(socket, open_pipe()) {}

  Launched& process() { return process_; }
  void close_input() { input_.close(); }

 private:
  struct Pipe {
    Descriptor read_end, write_end;
  };
  static Pipe open_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    return {Descriptor(ends[0]), Descriptor(ends[1])};
  }
  StoreProgram(int socket, Pipe pipe)
      : input_(std::move(pipe.write_end)), process_({DDPRUN_STORE, std::to_string(socket)}, [&] {
          ::dup2(pipe.read_end.get(), STDIN_FILENO);
          ::fcntl(socket, F_SETFD, 0);
        }) {}

  Descriptor input_;
  Launched process_;
};

c10::intrusive_ptr<c10d::Store> client(std::uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = 20s;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(StoreServer, ServesOnTheSocketUntilItsInputCloses) {
  const auto listener = comm::watch::listen_on_free_port(true);
  StoreProgram program(listener.socket.get());
  {
    const auto first = client(listener.port);
    first->set("key", std::string("a value"));
    const auto second = client(listener.port);
    EXPECT_EQ(second->get_to_str("key"), "a value");
  }
  program.close_input();
  EXPECT_EQ(program.process().finish(), 0);
  EXPECT_EQ(program.process().text(), "");
}

TEST(StoreServer, ServesOnASocketOfAllAddressesOfBothFamilies) {
  const auto listener = comm::watch::listen_on_free_port(false);
  StoreProgram program(listener.socket.get());
  const auto store = client(listener.port);
  store->set("key", std::string("a value"));
  EXPECT_EQ(store->get_to_str("key"), "a value");
}

TEST(StoreServer, ACallWithoutASocketIsOneLineAndExitCode2) {
  const std::vector<std::vector<std::string>> wrong{{}, {"x"}, {"1"}, {"3", "4"}, {"-3"}, {"3x"}};
  for (auto words : wrong) {
    words.insert(words.begin(), DDPRUN_STORE);
    Launched program(words);
    EXPECT_EQ(program.finish(), 2) << words.back();
    EXPECT_EQ(program.text().find("ddprun_store: usage: ddprun_store FD"), 0U) << program.text();
    EXPECT_EQ(program.occurrences("\n"), 1) << program.text();
  }
}

TEST(StoreServer, ADescriptorThatDoesNotListenIsNamedWithExitCode2) {
  Launched program({DDPRUN_STORE, "77"});
  EXPECT_EQ(program.finish(), 2);
  EXPECT_EQ(program.text(), "ddprun_store: cannot serve a store on descriptor 77: it is no socket that listens\n");
}

}  // namespace
}  // namespace ddp::test
