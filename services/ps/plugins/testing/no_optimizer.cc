// A library that is not a Sluice optimizer.
extern "C" __attribute__((visibility("default"))) int Answer() { return 42; }
