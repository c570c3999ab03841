// One value of every wire type in which no field has its default, made from the field list alone: golden files, fuzz
// test and specification test use it, and a new field is in it without anybody thinking of it.
#pragma once

#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "freeride/bus/codec.hpp"
#include "freeride/bus/types.hpp"

namespace freeride::bus::test {

class SampleMaker {
 public:
  template <class T>
  void operator()(const char* name, T& value) {
    fill(value, name);
  }

 private:
  // From the name, not from a counter: a field that is appended changes no other field's value.
  static int number(const std::string& name) {
    int sum = 0;
    for (const char letter : name) sum = (31 * sum + letter) % 997;
    return 1000 + sum;
  }
  template <class T>
  void fill(T& value, const std::string& name) {
    if constexpr (std::is_same_v<T, std::string>) {
      value = name + "-é" + std::to_string(number(name));
    } else if constexpr (std::is_same_v<T, bool>) {
      value = !value;
    } else if constexpr (std::is_same_v<T, double>) {
      value = 0.5 + number(name);
    } else if constexpr (std::is_unsigned_v<T>) {
      value = name == "v" ? kWireVersion : static_cast<T>(number(name));
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(-number(name));
    } else {
      fill_compound(value, name);
    }
  }
  template <class T>
  void fill_compound(std::vector<T>& value, const std::string& name) {
    value.resize(2);
    for (T& element : value) fill(element, name);
  }
  template <class T>
  void fill_compound(std::map<std::string, T>& value, const std::string& name) {
    fill(value["first"], name + ".first");
    fill(value["second"], name + ".second");
  }
  template <class T>
  void fill_compound(T& value, const std::string&) {
    T::fields(value, *this);
  }
};

template <class T>
T sample() {
  T value;
  SampleMaker maker;
  T::fields(value, maker);
  return value;
}

}  // namespace freeride::bus::test
