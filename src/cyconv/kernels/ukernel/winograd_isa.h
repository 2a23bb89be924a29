/* Winograd's microkernels for one instruction set, and their table. Needs ISA, VBYTES and MR, as
 * ukernel_isa.h does.
 */
#include <stdint.h>

#include "winograd.h"

#define REAL float
#define INTEGER int32_t
#define SUFFIX f32
#include "winograd_body.h"
#include "winograd_product.h"
#include "winograd_turn.h"
#include "winograd_end.h"

#define REAL double
#define INTEGER int64_t
#define SUFFIX f64
#include "winograd_body.h"
#include "winograd_product.h"
#include "winograd_turn.h"
#include "winograd_end.h"

#define TABLE_NAME2(isa) cyconv_winograd_##isa
#define TABLE_NAME(isa) TABLE_NAME2(isa)
#define FUNCTIONS(suffix) \
    { \
        .input = input_##suffix, .output = output_##suffix, .weights = weights_##suffix, \
        .spread = spread_##suffix, .gradient = gradient_##suffix, .along = along_##suffix, \
        .across = across_##suffix, .turn = turn_##suffix \
    }

const cyconv_winograd TABLE_NAME(ISA) = {.f32 = FUNCTIONS(f32), .f64 = FUNCTIONS(f64)};
