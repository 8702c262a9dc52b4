// Compiled with RANK 5, which is allowed, and 6, which is not.
#include "millipede/tensor.h"

millipede::TensorView<float, RANK> view;
