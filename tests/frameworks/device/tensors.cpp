// All that has to do with torch, in one unit: its headers are most of what is compiled.
#include "kernels.cpp"
#include "torch_side.cpp"
