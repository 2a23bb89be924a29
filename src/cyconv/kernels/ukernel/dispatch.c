/* Which microkernels this processor can run, best first. */
#include <string.h>

#include "ukernel.h"

extern const cyconv_ukernels cyconv_ukernels_baseline;
#ifdef CYCONV_X86
extern const cyconv_ukernels cyconv_ukernels_avx2, cyconv_ukernels_avx512;
#endif

const cyconv_ukernels *cyconv_ukernels_at(int i)
{
    const cyconv_ukernels *found[3];
    int n = 0;
#ifdef CYCONV_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
        found[n++] = &cyconv_ukernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found[n++] = &cyconv_ukernels_avx2;
#endif
    found[n++] = &cyconv_ukernels_baseline;
    return i >= 0 && i < n ? found[i] : NULL;
}

const cyconv_ukernels *cyconv_ukernels_named(const char *name)
{
    const cyconv_ukernels *table;
    for (int i = 0; (table = cyconv_ukernels_at(i)) != NULL; i++)
        if (!strcmp(name, table->isa))
            return table;
    return NULL;
}
