/* All microkernels for one instruction set, and their table. Needs ISA, VBYTES, MR and STRIP: the
 * name, the bytes of a vector, the rows of a full tile (MR*2 accumulators, 2 vectors of b and one
 * broadcast must fit the register file), the pixels of a strip (they and 7 taps must fit).
 */
#include <stdint.h>

#include "ukernel.h"

#define REAL float
#define INTEGER int32_t
#define SUFFIX f32
#include "ukernel_body.h"
#undef REAL
#undef INTEGER
#undef SUFFIX

#define REAL double
#define INTEGER int64_t
#define SUFFIX f64
#include "ukernel_body.h"
#undef REAL
#undef INTEGER
#undef SUFFIX

#if defined(__GNUC__) && !defined(CYCONV_SCALAR)
#define LANES_F32 (VBYTES / 4)
#define LANES_F64 (VBYTES / 8)
#else
#define LANES_F32 1
#define LANES_F64 1
#endif
#define TABLE_NAME2(isa) cyconv_ukernels_##isa
#define TABLE_NAME(isa) TABLE_NAME2(isa)
#define TEXT2(isa) #isa
#define TEXT(isa) TEXT2(isa)

#define WINOGRAD2(isa) cyconv_winograd_##isa
#define WINOGRAD(isa) WINOGRAD2(isa)

extern const cyconv_winograd WINOGRAD(ISA);

const cyconv_ukernels TABLE_NAME(ISA) = {
    .isa = TEXT(ISA),
    .mr = MR,
    .strip = STRIP,
    .vl_f32 = LANES_F32,
    .vl_f64 = LANES_F64,
    .outer_f32 = outer_f32,
    .along_f32 = along_f32,
    .spread_f32 = spread_f32,
    .across_f32 = across_f32,
    .dots_f32 = dots_f32,
    .outer_f64 = outer_f64,
    .along_f64 = along_f64,
    .spread_f64 = spread_f64,
    .across_f64 = across_f64,
    .dots_f64 = dots_f64,
    .transpose_f32 = transpose_f32,
    .transpose_f64 = transpose_f64,
    .collect_f32 = collect_f32,
    .collect_f64 = collect_f64,
    .move_f32 = move_f32,
    .move_f64 = move_f64,
    .zip_f32 = zip_f32,
    .unzip_f32 = unzip_f32,
    .zip_f64 = zip_f64,
    .unzip_f64 = unzip_f64,
    .slide_f32 = slide_f32,
    .slide_f64 = slide_f64,
    .slide_gradient_f32 = slide_gradient_f32,
    .slide_gradient_f64 = slide_gradient_f64,
    .finish_f32 = finish_f32,
    .finish_f64 = finish_f64,
    .winograd = &WINOGRAD(ISA),
};
