/* OpenMP runtime calls that not every compiler has; guarded by compiler version, because _OPENMP
   names the language level and GCC provides some functions of a later one. */
#ifndef CYCONV_OPENMP_COMPAT_H
#define CYCONV_OPENMP_COMPAT_H
#ifdef _OPENMP
#include <omp.h>
#endif

/* Ends the threads of the calling thread's pool; they come back at the next parallel region.
   A child of fork() has none of them and would wait for ever. */
static void cyconv_pause_threads(void)
{
#if defined(_OPENMP) && ((defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9) || \
                         (defined(__clang__) && __clang_major__ >= 9))
    omp_pause_resource_all(omp_pause_soft);
#endif
}

static int cyconv_openmp_version(void)
{
#ifdef _OPENMP
    return _OPENMP;
#else
    return 0;
#endif
}
#endif
