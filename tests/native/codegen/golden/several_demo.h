/* demo::copy (ops.py:95)
 *   x: fp32, [m, n], compact or [m, n], any strides
 *   out: fp32 [m, n]
 * Implementations: 0 demo::copy_flat (ops.py:90), 1 demo::copy (ops.py:95)
 */
OPFORGE_API OpforgeStatus demo_copy(const OpforgeTensor *x, OpforgeTensor *out, void *stream);

/* Fills in type, shape, strides and device of the outputs of the call above. Shape and strides
 * have room for OPFORGE_MAX_RANK (8) numbers each.
 */
OPFORGE_API OpforgeStatus demo_copy_outputs(const OpforgeTensor *x, OpforgeTensor *out);

/* Tells how many bytes of workspace the call above would allocate, and refuses what it would
 * refuse. The data of a tensor may be NULL. An output may be NULL; it is then taken to be as
 * demo_copy_outputs describes it.
 */
OPFORGE_API OpforgeStatus demo_copy_workspace(const OpforgeTensor *x, const OpforgeTensor *out,
                                              int64_t *bytes);

/* The same with a given implementation, where the call above uses the first that covers it. An
 * index out of range is OPFORGE_INVALID_ARGUMENT.
 */
OPFORGE_API OpforgeStatus demo_copy_with(int implementation, const OpforgeTensor *x,
                                         OpforgeTensor *out, void *stream);
OPFORGE_API OpforgeStatus demo_copy_outputs_with(int implementation, const OpforgeTensor *x,
                                                 OpforgeTensor *out);
OPFORGE_API OpforgeStatus demo_copy_workspace_with(int implementation, const OpforgeTensor *x,
                                                   const OpforgeTensor *out, int64_t *bytes);

/* Returns the number of implementations; if list is not NULL, also their names, sources and
 * guards, in the order in which they are tried. They live as long as the library is loaded.
 */
OPFORGE_API int demo_copy_implementations(const OpforgeImplementation **list);

#endif
