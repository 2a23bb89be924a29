#define ISA baseline
#define VBYTES 16
#define MR 6
#include "ukernel_isa.h"
