#include <iostream>

#include "command_line.hpp"

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  return freeride::ctl::run(argc, argv, std::cout, std::cerr);
}
