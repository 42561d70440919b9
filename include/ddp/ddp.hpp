#pragma once
/// ddp.hpp: everything.

#include "ddp/checkpoint.hpp"
#include "ddp/data_loader.hpp"
#include "ddp/data_parallel_core.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/distributed_sampler.hpp"
#include "ddp/environment.hpp"
#include "ddp/error.hpp"
#include "ddp/log.hpp"
#include "ddp/log_level.hpp"
#include "ddp/metrics.hpp"
#include "ddp/process_group.hpp"
#include "ddp/progress_bar.hpp"
#include "ddp/run.hpp"
#include "ddp/seed.hpp"
#include "ddp/tensor_visitor.hpp"
#include "ddp/work.hpp"
