/* The microkernels' one body, in GNU vector extensions; a compiler without them gets vectors of one
 * lane. No include guard: ukernel_isa.h includes it once per type. Needs REAL, INTEGER (of the same
 * size), SUFFIX, VBYTES, MR, STRIP.
 */
#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(op) JOIN(op, SUFFIX)

#if defined(__GNUC__) && !defined(CYCONV_SCALAR)
#define VL ((int)(VBYTES / sizeof(REAL)))
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define HAS_SHUFFLE
#endif
typedef REAL NAME(vec) __attribute__((vector_size(VBYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL NAME(reg) __attribute__((vector_size(VBYTES)));
#else
#define VL 1
#define ALWAYS_INLINE static inline
#define UNROLL
typedef REAL NAME(vec);
typedef REAL NAME(reg);
#endif

#include "sums_body.h"
#include "moves_body.h"
#include "slide_body.h"
#include "epilogue_body.h"

#undef JOIN2
#undef JOIN
#undef NAME
#undef VL
#undef UNROLL
#undef ALWAYS_INLINE
#undef HAS_SHUFFLE
