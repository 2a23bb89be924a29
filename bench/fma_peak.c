/* The arithmetic peak of a core: loops that do nothing but multiply-add in registers.
 *
 * Every accumulator does acc = acc * factor + term. An FMA unit has a latency of 4 or 5 cycles and a
 * core has one or two units, so 10 independent accumulators saturate it; each variant below keeps as
 * many as its register file holds beside the two operands. The factor is between 0 and 1,
 * so the values settle at term / (1 - factor): neither infinite nor subnormal.
 *
 * One body, compiled once per instruction set through function attributes; the best one that the
 * machine has is picked at run time. The baseline has no fused instruction on x86: a multiply and
 * an add count as the same two operations there.
 */

#if defined(__x86_64__) || defined(__i386__)
#define X86
#endif

/* The accumulators are registers only if every loop over them is unrolled. */
#define UNROLL _Pragma("GCC unroll 32")
#define LANES(scalar, bytes) ((int)((bytes) / sizeof(scalar)))

#define DEFINE_LOOP(name, scalar, bytes, n_acc, attributes)                                    \
    attributes static double name(long iterations, scalar factor, scalar term, double *sink)   \
    {                                                                                          \
        typedef scalar vec __attribute__((vector_size(bytes)));                                \
        const vec zero = {0};                                                                  \
        const vec f = zero + factor, t = zero + term;                                          \
        vec acc[n_acc];                                                                        \
        UNROLL for (int j = 0; j < (n_acc); j++)                                               \
            acc[j] = zero + (scalar)j;                                                         \
        for (long i = 0; i < iterations; i++)                                                  \
            UNROLL for (int j = 0; j < (n_acc); j++)                                           \
                acc[j] = acc[j] * f + t;                                                       \
        UNROLL for (int j = 1; j < (n_acc); j++)                                               \
            acc[0] += acc[j];                                                                  \
        *sink = (double)acc[0][0];                                                             \
        return 2.0 * (double)iterations * (n_acc) * LANES(scalar, bytes);                      \
    }

#define DEFINE_ISA(isa, bytes, n_acc, attributes)                \
    DEFINE_LOOP(loop_f32_##isa, float, bytes, n_acc, attributes) \
    DEFINE_LOOP(loop_f64_##isa, double, bytes, n_acc, attributes)

DEFINE_ISA(baseline, 16, 12, )
#ifdef X86
DEFINE_ISA(avx2, 32, 12, __attribute__((target("avx2,fma"))))
DEFINE_ISA(avx512, 64, 24, __attribute__((target("avx512f"))))
#endif

enum isa { BASELINE, AVX2, AVX512 };

static enum isa best_isa(void)
{
#ifdef X86
    if (__builtin_cpu_supports("avx512f"))
        return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return AVX2;
#endif
    return BASELINE;
}

const char *fma_isa(void)
{
    static const char *const names[] = {"baseline", "avx2", "avx512"};
    return names[best_isa()];
}

/* Run `iterations` rounds of the loop; return the number of floating-point operations done.
 * Factor and term come from the caller, so that no compiler can fold the arithmetic away. */
double fma_run_f32(long iterations, float factor, float term, double *sink)
{
    switch (best_isa()) {
#ifdef X86
    case AVX512:
        return loop_f32_avx512(iterations, factor, term, sink);
    case AVX2:
        return loop_f32_avx2(iterations, factor, term, sink);
#endif
    default:
        return loop_f32_baseline(iterations, factor, term, sink);
    }
}

double fma_run_f64(long iterations, double factor, double term, double *sink)
{
    switch (best_isa()) {
#ifdef X86
    case AVX512:
        return loop_f64_avx512(iterations, factor, term, sink);
    case AVX2:
        return loop_f64_avx2(iterations, factor, term, sink);
#endif
    default:
        return loop_f64_baseline(iterations, factor, term, sink);
    }
}
