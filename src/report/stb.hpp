#pragma once
/// stb.hpp: what is taken from Debian's libstb-dev: PNG files, and the shapes of letters.

#include <string>
#include <string_view>
#include <vector>

#include "report/image.hpp"

namespace ddp::report {

/// A PNG file's bytes. Errors: std::bad_alloc.
std::string encoded_png(const Image& image);

/// A stroke of a letter, in units of which a capital letter is 7 high.
struct Stroke {
  float left = 0, top = 0, right = 0, bottom = 0;
};

inline constexpr float kLineHeight = 12;

/// The strokes of one line of text that begins at (0, 0), its upper left corner; y grows downwards. What is not ASCII
/// is a question mark.
std::vector<Stroke> strokes_of(std::string_view text);
/// How far the text reaches to the right.
float text_width(std::string_view text);

}  // namespace ddp::report
