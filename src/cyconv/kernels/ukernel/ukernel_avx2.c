#define ISA avx2
#define VBYTES 32
#define MR 6
#define STRIP 8
#include "ukernel_isa.h"
