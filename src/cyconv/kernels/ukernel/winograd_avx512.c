#define ISA avx512
#define VBYTES 64
#define MR 12
#include "winograd_isa.h"
