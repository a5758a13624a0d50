// Prints docs/manifest.md, which is made from the table that checks manifests:
//
//   bazel run //docs:testing/print_manifest_reference > docs/manifest.md

#include <cstdio>

#include "services/manifest/print/print.h"

int main() { std::fputs(sluice::api::ReferenceMarkdown().c_str(), stdout); }
