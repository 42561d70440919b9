#pragma once
/// pickle_format.hpp: the part of Python's pickle protocol 2 that torch.load(weights_only=True) knows, and how tensors
/// stand in it. Opcodes and their names: Python's Lib/pickletools.py.

#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>

namespace ddp::checkpoint::pickle {

enum Op : unsigned char {
  proto = 0x80,
  stop = '.',
  mark = '(',
  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  long1 = 0x8a,
  bin_float = 'G',
  bin_unicode = 'X',
  short_bin_string = 'U',
  empty_tuple = ')',
  empty_list = ']',
  empty_dict = '}',
  empty_set = 0x8f,
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  append = 'a',
  appends = 'e',
  set_item = 's',
  set_items = 'u',
  global = 'c',
  reduce = 'R',
  build = 'b',
  new_obj = 0x81,
  bin_persid = 'Q',
  bin_get = 'h',
  long_bin_get = 'j',
  bin_put = 'q',
  long_bin_put = 'r',
};

constexpr unsigned char kProtocol = 2;

/// The storage class of a dtype in torch.save()'s files, or null for the dtypes that have none: their tensors stand as
/// bytes with the dtype beside them (torch._utils._rebuild_tensor_v3).
struct DtypeName {
  at::ScalarType dtype;
  const char* storage;
  const char* name;  ///< in Python's module torch
};
inline constexpr std::array kDtypes{
    DtypeName{at::kFloat, "FloatStorage", "float32"},
    DtypeName{at::kDouble, "DoubleStorage", "float64"},
    DtypeName{at::kHalf, "HalfStorage", "float16"},
    DtypeName{at::kBFloat16, "BFloat16Storage", "bfloat16"},
    DtypeName{at::kLong, "LongStorage", "int64"},
    DtypeName{at::kInt, "IntStorage", "int32"},
    DtypeName{at::kShort, "ShortStorage", "int16"},
    DtypeName{at::kChar, "CharStorage", "int8"},
    DtypeName{at::kByte, "ByteStorage", "uint8"},
    DtypeName{at::kBool, "BoolStorage", "bool"},
    DtypeName{at::kComplexFloat, "ComplexFloatStorage", "complex64"},
    DtypeName{at::kComplexDouble, "ComplexDoubleStorage", "complex128"},
    DtypeName{at::kUInt16, nullptr, "uint16"},
    DtypeName{at::kUInt32, nullptr, "uint32"},
    DtypeName{at::kUInt64, nullptr, "uint64"},
    DtypeName{at::kFloat8_e4m3fn, nullptr, "float8_e4m3fn"},
    DtypeName{at::kFloat8_e5m2, nullptr, "float8_e5m2"},
    DtypeName{at::kFloat8_e4m3fnuz, nullptr, "float8_e4m3fnuz"},
    DtypeName{at::kFloat8_e5m2fnuz, nullptr, "float8_e5m2fnuz"},
};

/// A tree deeper than this is not written: values are taken apart recursively. What is read may lie in a few more.
constexpr int kDeepest = 100;
constexpr int kDeepestRead = kDeepest + 10;
/// Lists, dicts and tensors in a file, and elements of a tuple. Ten times as many as a large model's run has, and few
/// enough to be held by a machine that reads a file of nothing else.
constexpr std::size_t kMost = std::size_t{1} << 20U;
/// As much as kMost tensors need, with room.
constexpr std::size_t kLongest = std::size_t{256} << 20U;

}  // namespace ddp::checkpoint::pickle
