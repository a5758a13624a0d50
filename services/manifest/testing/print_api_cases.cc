// Prints ApiCases() as a JSON list, for programs that test a real API server.
#include <iostream>
#include <nlohmann/json.hpp>

#include "services/manifest/testing/api_cases.h"

int main() {
  nlohmann::json list = nlohmann::json::array();
  for (const sluice::api::ApiCase& one : sluice::api::ApiCases()) {
    list.push_back({{"name", one.name},
                    {"manifest", one.manifest},
                    {"before", one.before},
                    {"accepted", one.accepted},
                    {"words", one.words}});
  }
  std::cout << list.dump(1) << "\n";
}
