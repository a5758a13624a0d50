// For tests, after library_headers.h.

#ifndef SLUICE_THIRD_PARTY_PRECOMPILED_TEST_HEADERS_H_
#define SLUICE_THIRD_PARTY_PRECOMPILED_TEST_HEADERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#endif  // SLUICE_THIRD_PARTY_PRECOMPILED_TEST_HEADERS_H_
