/* The end of winograd_body.h's macros, so that the next type can begin. */
#undef LOAD
#undef STORE
#undef JOIN2
#undef JOIN
#undef NAME
#undef VL
#undef UNROLL
#undef ALWAYS_INLINE
#undef REAL
#undef INTEGER
#undef SUFFIX
