/* Flushing of subnormal numbers, operands and results, in the calling thread: on, and back to what
   it was. Subnormals cost some processors a hundred cycles and more an operation. */
#ifndef CYCONV_FLUSH_H
#define CYCONV_FLUSH_H
#include <stdint.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
enum { CYCONV_FLUSH_TO_ZERO = 0x8000, CYCONV_SUBNORMALS_ARE_ZERO = 0x0040 };
static uint64_t cyconv_flush_begin(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | CYCONV_FLUSH_TO_ZERO | CYCONV_SUBNORMALS_ARE_ZERO);
    return before;
}
static void cyconv_flush_end(uint64_t before)
{
    _mm_setcsr((unsigned)before);
}
#elif defined(__aarch64__)
static uint64_t cyconv_flush_begin(void)
{
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | (1u << 24)));
    return before;
}
static void cyconv_flush_end(uint64_t before)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
}
#else
static uint64_t cyconv_flush_begin(void)
{
    return 0;
}
static void cyconv_flush_end(uint64_t before)
{
    (void)before;
}
#endif
#endif
