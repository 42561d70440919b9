// Writes event files whose content event_files.py knows: event_files FOLDER
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include <ddp/ddp.hpp>

namespace {

ddp::SummaryWriter::Time at(int seconds) {
  return ddp::SummaryWriter::Time(std::chrono::seconds(1'700'000'000 + seconds));
}

/// The doubles of a tensor, for Python to count itself.
void keep(const std::filesystem::path& path, const torch::Tensor& values) {
  const auto doubles = values.to(torch::kDouble).contiguous();
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(doubles.const_data_ptr()), static_cast<std::streamsize>(doubles.nbytes()));
}

void write_all_kinds(const std::filesystem::path& folder, ddp::ProcessGroup& group) {
  ddp::SummaryWriter writer(folder / "kinds", group, {.csv = true});
  for (int step = 0; step < 100; ++step) writer.add_scalar("loss/train", 1.0 / (step + 1), step, at(step));
  writer.add_scalar("odd", NAN, -5);
  writer.add_scalar("odd", INFINITY, std::int64_t{1} << 40);
  writer.add_scalar("größe", -2.5, 0);

  torch::manual_seed(1);
  const auto normal = torch::randn({50, 100}), wide = torch::randn(3000, torch::kDouble).pow(7);
  keep(folder / "normal", normal);
  keep(folder / "wide", wide);
  writer.add_histogram("normal", normal, 3, at(3));
  writer.add_histogram("wide", wide, 3);
  writer.add_histogram("with gaps", torch::cat({torch::full(5, NAN), torch::zeros(7), torch::full(2, -4.0)}), 3);

  const auto bytes = torch::arange(3 * 40 * 50).remainder(251).to(torch::kByte).view({3, 40, 50});
  writer.add_image("bytes", bytes, 1);
  writer.add_image("bytes", 255 - bytes, 2);
  writer.add_image("grey", torch::tensor({-1.0F, 0.0F, 0.5F, 1.0F, 7.0F, NAN}).view({1, 2, 3}), 1);
  writer.add_text("words", "**bold**", 4);
}

void write_a_run_that_goes_on(const std::filesystem::path& folder, ddp::ProcessGroup& group) {
  {
    ddp::SummaryWriter first(folder / "resumed", group);
    for (int step = 0; step < 10; ++step) first.add_scalar("loss", step, step);
  }
  ddp::SummaryWriter second(folder / "resumed", group, {.purge_step = 5});
  for (int step = 5; step < 8; ++step) second.add_scalar("loss", 100 + step, step);
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run([&] {
    const std::filesystem::path folder(argc == 2 ? argv[1] : throw std::invalid_argument("usage: event_files FOLDER"));
    const auto group = ddp::init_process_group();
    write_all_kinds(folder, *group);
    write_a_run_that_goes_on(folder, *group);
  });
}
