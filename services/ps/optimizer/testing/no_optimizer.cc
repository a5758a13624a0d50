// A library that is none of Sluice's.
extern "C" __attribute__((visibility("default"))) int Answer() { return 42; }
