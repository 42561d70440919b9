// What backward() leaves in parameter.grad(), in every way in which C++ code zeroes, accumulates,
// misses or breaks gradients.

#include <gtest/gtest.h>

#include "ddp/distributed_data_parallel.hpp"
#include "support/backward_errors.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/text.hpp"
#include "support/training.hpp"

namespace ddp {
namespace {

using namespace ddp::testing;
using Group = std::shared_ptr<ProcessGroup>;

const DistributedDataParallelOptions kManyBuckets{.bucket_cap_mb = 0.0005, .first_bucket_cap_mb = 0.0001};

TEST(Gradients, ThatAreMissingAreNamedByTheSameBackward) {  // R01 (a)
  run_ranks(2, [](const Group& group) {
    Branch net;
    DistributedDataParallel model(net, group);
    const auto text = gradient_error([&] { model(torch::ones({2, 3}), false).sum().backward(); });
    expect_contains(text,
                    {"rank " + std::to_string(group->rank()) + " of 2", "idle.weight", "idle.bias", "ranks 0, 1"});
    EXPECT_EQ(text.find("used.weight"), std::string::npos) << text;
    // All ranks had the same error, so the next step works.
    net->zero_grad();
    model(torch::ones({2, 3}), true).sum().backward();
    EXPECT_TRUE(same_on_all_ranks(*group, net->idle->weight.grad()));
  });
}

TEST(Gradients, ThatAreMissingOnOneRankAreNamedOnAllRanks) {
  run_ranks(3, [](const Group& group) {
    Branch net;
    DistributedDataParallel model(net, group, kManyBuckets);
    const auto text = gradient_error([&] { model(torch::ones({2, 3}), group->rank() != 1).sum().backward(); });
    expect_contains(text, {"on rank 1: no gradient for", "idle.weight", "idle.bias"});
    model(torch::ones({2, 3}), true).sum().backward();
  });
}

TEST(Gradients, ThatAreAllMissingAreNamedWhereTheOutputReachesNoParameter) {
  struct MaybeImpl : torch::nn::Module {
    torch::Tensor weight = register_parameter("weight", torch::ones({2}));
    torch::Tensor forward(torch::Tensor x, bool use) { return use ? x * weight : x * 2; }
  };
  run_ranks(2, [](const Group& group) {
    DistributedDataParallel model(std::make_shared<MaybeImpl>(), group);
    const auto input = torch::ones({2}).requires_grad_();
    const auto text = gradient_error([&] { model(input, group->rank() == 0).sum().backward(); });
    expect_contains(text, {"on rank 1: no gradient for weight"});
  });
}

TEST(Gradients, SurviveEveryWayOfZeroing) {  // R50
  const std::vector<std::function<void(torch::nn::Module&, torch::optim::Optimizer&)>> ways{
      [](auto&, auto& optimizer) { optimizer.zero_grad(); },
      [](auto&, auto& optimizer) { optimizer.zero_grad(false); },
      [](auto& module, auto&) { module.zero_grad(); },
      [](auto& module, auto&) { module.zero_grad(false); },
      [](auto& module, auto&) {
        for (auto& parameter : module.parameters())
          if (parameter.grad().defined()) {
            parameter.mutable_grad().detach_();
            parameter.mutable_grad().zero_();
          }
      },
      [](auto& module, auto&) {
        for (auto& parameter : module.parameters()) parameter.mutable_grad() = torch::Tensor();
      },
      [](auto& module, auto&) {
        for (auto& parameter : module.parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
      },
      [](auto& module, auto&) {
        for (auto& parameter : module.parameters())
          if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().clone().zero_();
      },
      [](auto& module, auto&) {
        for (auto& parameter : module.parameters())
          if (parameter.grad().defined()) parameter.mutable_grad().set_data(torch::zeros_like(parameter));
      },
      [](auto& module, auto&) {
        for (auto& parameter : module.parameters())
          if (parameter.grad().defined()) parameter.mutable_grad().resize_({0});
        module.zero_grad();
      }};
  run_ranks(2, [&](const Group& group) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      for (const bool views : {true, false}) {
        Perceptron net, reference;
        auto options = kManyBuckets;
        options.gradient_as_bucket_view = views;
        const auto optimizer = sgd_with_momentum(net->parameters());  // may be made before wrapping
        DistributedDataParallel model(net, group, options);
        const auto reference_optimizer = sgd_with_momentum(reference->parameters());
        for (int step = 0; step < 3; ++step) {
          const auto batch = Batch::of_step(step, 4);
          const auto mine = batch.of_rank(group->rank(), 2);
          ways[way](*net, *optimizer);
          reference_optimizer->zero_grad();
          squared_error(model(mine.input), mine.target).backward();
          squared_error(reference(batch.input), batch.target).backward();
          expect_same_gradients(*net, *reference);
          optimizer->step();
          reference_optimizer->step();
        }
        EXPECT_FALSE(::testing::Test::HasFailure()) << "way " << way << " views " << views;
      }
    }
  });
}

TEST(Gradients, ThatTheUserHasSwappedBetweenParametersAccumulateRightly) {
  struct PairImpl : torch::nn::Module {
    torch::Tensor a = register_parameter("a", torch::ones({2}));
    torch::Tensor b = register_parameter("b", torch::ones({2}));
    torch::Tensor forward(torch::Tensor x) { return x * (a + 10 * b); }
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<PairImpl>();
    DistributedDataParallel model(net, group);
    const auto x = torch::full({2}, 1.0 + group->rank());
    model(x).sum().backward();
    std::swap(net->a.mutable_grad(), net->b.mutable_grad());
    model(x).sum().backward();
    EXPECT_TRUE(torch::equal(net->a.grad(), torch::full({2}, 16.5))) << net->a.grad();
    EXPECT_TRUE(torch::equal(net->b.grad(), torch::full({2}, 16.5))) << net->b.grad();
  });
}

TEST(Gradients, AccumulateExactlyUnderNoSync) {  // R40
  run_ranks(2, [](const Group& group) {
    for (const int micro_batches : {1, 2, 4})
      for (const bool views : {true, false})
        for (const bool set_to_none : {true, false}) {
          Perceptron net, reference;
          auto options = kManyBuckets;
          options.gradient_as_bucket_view = views;
          DistributedDataParallel model(net, group, options);
          for (int step = 0; step < 3; ++step) {
            net->zero_grad(set_to_none);
            reference->zero_grad(set_to_none);
            for (int micro = 0; micro < micro_batches; ++micro) {
              const auto batch = Batch::of_step(step * 10 + micro, 4);
              const auto mine = batch.of_rank(group->rank(), 2);
              const auto backward = [&] { squared_error(model(mine.input), mine.target).backward(); };
              if (micro + 1 < micro_batches) {
                const auto guard = model->no_sync();
                backward();
              } else {
                backward();
              }
              squared_error(reference(batch.input), batch.target).backward();
            }
            expect_same_gradients(*net, *reference);
          }
        }
  });
}

TEST(Gradients, OfAnUnsynchronisedMicroBatchAreReducedThoughTheLastBackwardMissesThem) {
  run_ranks(2, [](const Group& group) {
    Branch net;
    net->to(torch::kDouble);
    DistributedDataParallel model(net, group);
    const auto input = torch::full({1, 3}, 1.0 + group->rank(), torch::kDouble);
    {
      const auto guard = model->no_sync();
      model(input, true).sum().backward();
    }
    const auto local = net->idle->weight.grad().clone();
    auto sum = local.clone();
    group->all_reduce(sum);
    model(input, false).sum().backward();
    EXPECT_TRUE(close(net->idle->weight.grad(), sum / 2, 1e-12));
  });
}

TEST(Gradients, StayOnTheirRankUnderNoSync) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group);
    const auto mine = Batch::of_step(0, 4).of_rank(group->rank(), 2);
    const auto guard = model->no_sync();
    squared_error(model(mine.input), mine.target).backward();
    squared_error(reference(mine.input), mine.target).backward();
    expect_same_gradients(*net, *reference, 0);
  });
}

TEST(Gradients, OfTwoBackwardsOverOneGraphAreBothReduced) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group, kManyBuckets);
    const auto batch = Batch::of_step(0, 4);
    const auto mine = batch.of_rank(group->rank(), 2);
    const auto twice = [](torch::Tensor loss) {
      loss.backward({}, true);
      loss.backward();
    };
    twice(squared_error(model(mine.input), mine.target));
    twice(squared_error(reference(batch.input), batch.target));
    expect_same_gradients(*net, *reference);
  });
}

TEST(Gradients, OfTiedWeightsTakeOneSlotAndOneReduction) {
  struct TiedImpl : torch::nn::Module {
    torch::nn::Linear encoder =
        register_module("encoder", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
    torch::nn::Linear decoder = register_module("decoder", encoder);
    torch::Tensor forward(torch::Tensor x) { return decoder(torch::tanh(encoder(x))); }
  };
  run_ranks(2, [](const Group& group) {
    torch::manual_seed(1);
    const auto net = std::make_shared<TiedImpl>();
    torch::manual_seed(1);
    TiedImpl reference;
    DistributedDataParallel model(net, group);
    EXPECT_EQ(model->parameters().size(), 1u);
    // One slot, and 23 bytes a rank of what ranks tell each other in each step.
    EXPECT_EQ(model->bucket_bytes(), (9 + 2 * 23) * 4);
    const auto x = torch::arange(12, torch::kFloat).view({4, 3}) / 10;
    model(x.chunk(2)[group->rank()]).mean().backward();
    reference.forward(x).mean().backward();
    EXPECT_TRUE(close(net->encoder->weight.grad(), reference.encoder->weight.grad(), 1e-6));
  });
}

TEST(Gradients, KeepDtypeInMixedModules) {  // R27
  struct MixedImpl : torch::nn::Module {
    MixedImpl() {
      int i = 0;
      for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kComplexFloat,
                               torch::kComplexDouble, torch::kFloat, torch::kHalf})
        weights.push_back(register_parameter("w" + std::to_string(i++), torch::ones({5}, dtype)));
    }
    torch::Tensor forward(double x) {
      auto sum = torch::zeros({}, torch::kDouble);
      const c10::complex<double> z(x, 2 * x);
      for (const auto& w : weights)
        sum = sum + (w.is_complex() ? torch::real(w * z).sum().to(torch::kDouble) : (w * x).sum().to(torch::kDouble));
      return sum;
    }
    std::vector<torch::Tensor> weights;
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<MixedImpl>();
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 1e-5, .first_bucket_cap_mb = 1e-5});
    model(group->rank() == 0 ? 1.0 : 4.0).backward();
    for (const auto& entry : net->named_parameters()) {
      const auto& w = entry.value();
      const auto expected = w.is_complex() ? torch::full({5}, c10::complex<double>(2.5, -5), w.options())
                                           : torch::full({5}, 2.5, w.options());
      EXPECT_TRUE(torch::equal(w.grad(), expected)) << entry.key() << w.grad();
      EXPECT_TRUE(same_on_all_ranks(*group, w.grad())) << entry.key();
    }
  });
}

TEST(Gradients, OfA1x1ConvolutionInChannelsLastLieInTheBucket) {  // R25
  run_ranks(2, [](const Group& group) {
    torch::manual_seed(0);
    torch::nn::Conv2d net(torch::nn::Conv2dOptions(6, 4, 1));
    net->to(torch::kDouble);
    net->weight.set_data(net->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    const auto reference = std::dynamic_pointer_cast<torch::nn::Conv2dImpl>(net->clone());
    DistributedDataParallel model(net, group);
    std::vector<std::string> warnings;
    struct Collect : c10::WarningHandler {
      std::vector<std::string>* to;
      void process(const c10::Warning& warning) override { to->push_back(warning.msg()); }
    } collect;
    collect.to = &warnings;
    c10::WarningUtils::WarningHandlerGuard guard(&collect);
    torch::manual_seed(1);
    const auto x = torch::randn({4, 6, 3, 3}, torch::kDouble).contiguous(torch::MemoryFormat::ChannelsLast);
    const void* memory = nullptr;
    for (int step = 0; step < 3; ++step) {
      if (step == 2)
        net->zero_grad(false);
      else
        net->zero_grad();
      model(x.chunk(2)[group->rank()]).pow(2).mean().backward();
      if (step == 0) memory = net->weight.grad().data_ptr();
      EXPECT_EQ(net->weight.grad().data_ptr(), memory);
      EXPECT_FALSE(net->weight.grad().is_view());
    }
    reference->forward(x).pow(2).mean().backward();
    EXPECT_TRUE(close(net->weight.grad(), reference->weight.grad(), 1e-12));
    EXPECT_TRUE(warnings.empty()) << warnings.front();
  });
}

TEST(Gradients, OfParametersWithoutElementsBlockNothing) {  // R31
  struct NetImpl : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 4));
    torch::Tensor extra = register_parameter("extra", torch::zeros({0, 16}));
    torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 2));
    torch::Tensor forward(torch::Tensor x) { return second(first(x)); }
  };
  for (const double cap : {1.0 / 1024 / 1024, 25.0}) {
    run_ranks(2, [cap](const Group& group) {
      torch::manual_seed(0);
      const auto net = std::make_shared<NetImpl>();
      torch::manual_seed(0);
      NetImpl reference;
      DistributedDataParallel model(net, group, {.bucket_cap_mb = cap, .first_bucket_cap_mb = cap});
      const auto x = torch::arange(12, torch::kFloat).view({4, 3});
      // Rank 1 has no rows: it contributes zeros.
      model(group->rank() == 0 ? x : x.slice(0, 0, 0)).sum().backward();
      (reference.forward(x).sum() / 2).backward();
      EXPECT_TRUE(close(net->first->weight.grad(), reference.first->weight.grad(), 1e-6));
      ASSERT_TRUE(net->extra.grad().defined());
      EXPECT_EQ(net->extra.grad().sizes(), net->extra.sizes());
    });
  }
}

TEST(Gradients, AreAveragedEarlyThoughABucketHasNoElements) {  // R31
  struct NetImpl : WaitsForMeanImpl {
    NetImpl() { register_parameter("extra", torch::zeros({0, 16}, torch::kDouble)); }
  };
  run_ranks(2, [](const Group& group) {
    const auto net = std::make_shared<NetImpl>();
    DistributedDataParallel model(net, group, kBucketEach);
    EXPECT_TRUE(averages_while_backward_runs(model, *net, group->rank()));
  });
}

TEST(Gradients, OfABlockCheckpointedTwiceAreSummed) {  // R20
  struct Checkpointed : torch::autograd::Function<Checkpointed> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, at::Tensor w) {
      context->save_for_backward({x, w});
      return x * w.detach();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      const auto saved = context->get_saved_variables();
      const auto x = saved[0].detach().requires_grad_();
      const at::AutoGradMode with_graph(true);
      (x * saved[1]).backward(gradients[0]);
      return {x.grad(), at::Tensor()};
    }
  };
  struct NetImpl : torch::nn::Module {
    torch::Tensor first = register_parameter("first", torch::ones({2}));
    torch::Tensor block = register_parameter("block", torch::ones({2}));
    torch::Tensor forward(torch::Tensor x, int uses) {
      x = x * first;
      for (int i = 0; i < uses; ++i) x = Checkpointed::apply(x, block);
      return x;
    }
  };
  run_ranks(2, [](const Group& group) {
    // In one bucket; and each in its own, which leaves before the block's second gradient comes.
    for (const auto& options : {DistributedDataParallelOptions{}, kManyBuckets}) {
      const auto net = std::make_shared<NetImpl>();
      DistributedDataParallel model(net, group, options);
      const auto x = torch::full({2}, 1.0 + group->rank());
      for (const int uses : {1, 2, 3, 1}) {
        net->zero_grad();
        model(x, uses).sum().backward();
        EXPECT_TRUE(torch::equal(net->block.grad(), torch::full({2}, 1.5 * uses))) << net->block.grad();
        EXPECT_TRUE(torch::equal(net->first.grad(), torch::full({2}, 1.5)));
      }
    }
  });
}

TEST(Gradients, OfACreateGraphBackwardAreConstants) {
  run_ranks(2, [](const Group& group) {
    Perceptron net, reference;
    DistributedDataParallel model(net, group);
    const auto batch = Batch::of_step(0, 4);
    const auto mine = batch.of_rank(group->rank(), 2);
    for (int round = 0; round < 2; ++round) {
      squared_error(model(mine.input), mine.target).backward({}, true, true);
      squared_error(reference(batch.input), batch.target).backward();
      expect_same_gradients(*net, *reference);
      EXPECT_FALSE(net->layers[0]->weight.grad().requires_grad());
    }
  });
}

}  // namespace
}  // namespace ddp
