#define ISA baseline
#define VBYTES 16
#define MR 6
#include "winograd_isa.h"
