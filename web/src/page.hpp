// The page's files, embedded in the program when it is built.
#pragma once

#include <string_view>

namespace freeride::web {

extern const std::string_view kPageHtml, kPageScript, kPageStyle, kPageIcon;

}  // namespace freeride::web
