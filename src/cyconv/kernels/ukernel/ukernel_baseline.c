#define ISA baseline
#define VBYTES 16
#define MR 6
#define STRIP 8
#include "ukernel_isa.h"
