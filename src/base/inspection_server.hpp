#pragma once
/// inspection_server.hpp: a thread that answers those who ask this process from outside what its job does
/// (ddprun --inspect), whatever its other threads are stuck in.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/process_key.hpp"
#include "base/service_thread.hpp"

namespace ddp {

/// Asked by processes of the same user or of root, one at a time. Who connects and then neither speaks nor listens
/// keeps the next one waiting for two seconds at most.
///
/// Errors: none; where it cannot serve it does not, and trouble() says why.
/// Lifetime: a child of fork() does not serve, and its copy of this object does nothing.
class InspectionServer {
 public:
  /// What to tell. With `about` only if that process is a rank of this one's job, else an empty text.
  /// Called on the server's thread; may throw.
  using Answer = std::function<std::string(const std::optional<ProcessKey>& about)>;

  explicit InspectionServer(Answer answer) noexcept;
  /// Ends the thread: at once, or when the answer that it is at has returned.
  ~InspectionServer() = default;
  InspectionServer(const InspectionServer&) = delete;
  InspectionServer& operator=(const InspectionServer&) = delete;

  /// Why nobody can ask; empty while it serves.
  const std::string& trouble() const { return trouble_; }
  /// False in a child of fork(), and where it does not serve.
  bool is_of_this_process() const { return thread_ && thread_->is_of_this_process(); }

 private:
  /// The socket, of which a process has one. A child of fork() closes its copy, which would keep the name taken
  /// after this process's end.
  class Listener {
   public:
    ~Listener() { close(); }
    /// Errors: std::system_error
    void open(const ProcessKey& name);
    void close() noexcept;
    int get() const { return fd_; }

   private:
    int fd_ = -1;
  };

  void run(int stop) const;
  void answer_next(int stop) const;
  void answer(int client, int stop) const;
  std::string reply_to(const std::string& question) const;

  const Answer answer_;
  std::string trouble_;
  Listener listener_;
  std::unique_ptr<ServiceThread> thread_;  // last: it uses what stands above
};

}  // namespace ddp
