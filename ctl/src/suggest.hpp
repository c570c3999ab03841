// "Did you mean ...": the nearest of what there is to what was typed. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

namespace freeride::ctl {

/// The candidate with the fewest letters to add, leave out, change or swap with their neighbour: at most a third of
/// `word`'s, and at least one. Else the only one that `word` begins. Empty: none is near, or `word` is one.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// "did you mean 'tasks'? " or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace freeride::ctl
