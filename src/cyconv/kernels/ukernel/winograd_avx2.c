#define ISA avx2
#define VBYTES 32
#define MR 6
#include "winograd_isa.h"
