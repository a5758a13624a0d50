// Prints the CustomResourceDefinition of TrainingJobs.
#include <iostream>

#include "operator/crd/crd.h"

int main() { std::cout << sluice::api::CustomResourceDefinitionYaml(); }
