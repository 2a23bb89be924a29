#define ISA avx512
#define VBYTES 64
#define MR 12
#define STRIP 14
#include "ukernel_isa.h"
