// What scripts/tune/run's generated files and tune.cu share.
#pragma once

#include <vector>

#include "decode.cuh"

struct Variant {
  const char* name;
  const char* source;  // as written in table.cuh; "" of a kernel that is no config
  void (*launch)(const gdn::Arguments&, cudaStream_t);
};

std::vector<Variant> all_configs();
