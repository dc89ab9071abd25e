namespace demo {

/* Loads every kernel on a device, so that no call has to. */
inline void load(int device = 0)
{
    opforge::detail::check(::demo_load(device), ::demo_last_error);
}

/* Unloads the kernels of a device and releases its context. No call may be running. */
inline void unload(int device = 0)
{
    opforge::detail::check(::demo_unload(device), ::demo_last_error);
}

/* Sets the source of workspace; nullptr, nullptr for the driver's (cuMemAllocAsync, hipMallocAsync). */
inline void set_allocator(OpforgeAllocate allocate, OpforgeRelease release, void *context = nullptr)
{
    opforge::detail::check(::demo_set_allocator(allocate, release, context),
                           ::demo_last_error);
}

/* The contents as JSON. */
inline const char *manifest() { return ::demo_manifest(); }

enum class everything_mode {
    relu = DEMO_EVERYTHING_MODE_RELU, // 'relu'
    none = DEMO_EVERYTHING_MODE_NONE, // None
};

enum class special_what {
    shared = DEMO_SPECIAL_WHAT_SHARED, // 'shared'
    cluster = DEMO_SPECIAL_WHAT_CLUSTER, // 'cluster'
    cluster16 = DEMO_SPECIAL_WHAT_CLUSTER16, // 'cluster16'
    cooperative = DEMO_SPECIAL_WHAT_COOPERATIVE, // 'cooperative'
    pdl = DEMO_SPECIAL_WHAT_PDL, // 'pdl'
    scratch = DEMO_SPECIAL_WHAT_SCRATCH, // 'scratch'
    profile = DEMO_SPECIAL_WHAT_PROFILE, // 'profile'
    huge = DEMO_SPECIAL_WHAT_HUGE, // 'huge'
    late = DEMO_SPECIAL_WHAT_LATE, // 'late'
};

/* The sum of two tensors. demo_add in demo.h says what it takes. */
inline void add(
    const opforge::Tensor &x, const opforge::Tensor &y, opforge::Tensor &out,
    opforge::Stream stream = {})
{
    opforge::detail::check(::demo_add(
        x.raw(), y.raw(), out.raw(), stream.get()), ::demo_last_error);
}

/* Type, shape, strides and device of the outputs of add; no memory. */
inline opforge::Tensor add_outputs(const opforge::Tensor &x, const opforge::Tensor &y)
{
    opforge::Tensor out;
    opforge::detail::check(::demo_add_outputs(x.raw(), y.raw(), out.raw()), ::demo_last_error);
    return out;
}

/* Allocates the outputs. */
inline opforge::Output add(
    const opforge::Tensor &x, const opforge::Tensor &y, const opforge::Allocator &allocator,
    opforge::Stream stream = {})
{
    const auto of_described = ::demo::add_outputs(x, y);
    auto out = opforge::detail::made(of_described, allocator, stream, "demo_add: out");
    ::demo::add(x, y, out, stream);
    return out;
}

/* The bytes of workspace that add would allocate; the tensors need no memory. */
inline std::int64_t add_workspace(
    const opforge::Tensor &x, const opforge::Tensor &y, const opforge::Tensor *out = nullptr)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_add_workspace(
        x.raw(), y.raw(), opforge::detail::raw(out), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* The same with a given implementation. */
inline void add_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor &y,
    opforge::Tensor &out, opforge::Stream stream = {})
{
    opforge::detail::check(::demo_add_with(
        implementation, x.raw(), y.raw(), out.raw(), stream.get()), ::demo_last_error);
}

/* Type, shape, strides and device of the outputs of add_with; no memory. */
inline opforge::Tensor add_outputs_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor &y)
{
    opforge::Tensor out;
    opforge::detail::check(::demo_add_outputs_with(
        implementation, x.raw(), y.raw(), out.raw()), ::demo_last_error);
    return out;
}

/* Allocates the outputs. */
inline opforge::Output add_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor &y,
    const opforge::Allocator &allocator, opforge::Stream stream = {})
{
    const auto of_described = ::demo::add_outputs_with(implementation, x, y);
    auto out = opforge::detail::made(of_described, allocator, stream, "demo_add: out");
    ::demo::add_with(implementation, x, y, out, stream);
    return out;
}

/* The bytes of workspace that add_with would allocate; the tensors need no memory. */
inline std::int64_t add_workspace_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor &y,
    const opforge::Tensor *out = nullptr)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_add_workspace_with(
        implementation, x.raw(), y.raw(), opforge::detail::raw(out), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* In the order in which they are tried. */
inline opforge::Implementations add_implementations()
{
    return opforge::Implementations(::demo_add_implementations);
}

/* demo_matmul in demo.h says what it takes. */
inline void matmul(
    const opforge::Tensor &a, const opforge::Tensor &b, opforge::Tensor &out,
    opforge::Stream stream = {})
{
    opforge::detail::check(::demo_matmul(
        a.raw(), b.raw(), out.raw(), stream.get()), ::demo_last_error);
}

/* Type, shape, strides and device of the outputs of matmul; no memory. */
inline opforge::Tensor matmul_outputs(const opforge::Tensor &a, const opforge::Tensor &b)
{
    opforge::Tensor out;
    opforge::detail::check(::demo_matmul_outputs(a.raw(), b.raw(), out.raw()), ::demo_last_error);
    return out;
}

/* Allocates the outputs. */
inline opforge::Output matmul(
    const opforge::Tensor &a, const opforge::Tensor &b, const opforge::Allocator &allocator,
    opforge::Stream stream = {})
{
    const auto of_described = ::demo::matmul_outputs(a, b);
    auto out = opforge::detail::made(of_described, allocator, stream, "demo_matmul: out");
    ::demo::matmul(a, b, out, stream);
    return out;
}

/* The bytes of workspace that matmul would allocate; the tensors need no memory. */
inline std::int64_t matmul_workspace(
    const opforge::Tensor &a, const opforge::Tensor &b, const opforge::Tensor *out = nullptr)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_matmul_workspace(
        a.raw(), b.raw(), opforge::detail::raw(out), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* The same with a given implementation. */
inline void matmul_with(
    int implementation, const opforge::Tensor &a, const opforge::Tensor &b,
    opforge::Tensor &out, opforge::Stream stream = {})
{
    opforge::detail::check(::demo_matmul_with(
        implementation, a.raw(), b.raw(), out.raw(), stream.get()), ::demo_last_error);
}

/* Type, shape, strides and device of the outputs of matmul_with; no memory. */
inline opforge::Tensor matmul_outputs_with(
    int implementation, const opforge::Tensor &a, const opforge::Tensor &b)
{
    opforge::Tensor out;
    opforge::detail::check(::demo_matmul_outputs_with(
        implementation, a.raw(), b.raw(), out.raw()), ::demo_last_error);
    return out;
}

/* Allocates the outputs. */
inline opforge::Output matmul_with(
    int implementation, const opforge::Tensor &a, const opforge::Tensor &b,
    const opforge::Allocator &allocator, opforge::Stream stream = {})
{
    const auto of_described = ::demo::matmul_outputs_with(implementation, a, b);
    auto out = opforge::detail::made(of_described, allocator, stream, "demo_matmul: out");
    ::demo::matmul_with(implementation, a, b, out, stream);
    return out;
}

/* The bytes of workspace that matmul_with would allocate; the tensors need no memory. */
inline std::int64_t matmul_workspace_with(
    int implementation, const opforge::Tensor &a, const opforge::Tensor &b,
    const opforge::Tensor *out = nullptr)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_matmul_workspace_with(
        implementation, a.raw(), b.raw(), opforge::detail::raw(out), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* In the order in which they are tried. */
inline opforge::Implementations matmul_implementations()
{
    return opforge::Implementations(::demo_matmul_implementations);
}

/* demo_everything in demo.h says what it takes. */
inline void everything(
    const opforge::Tensor &x, const opforge::Tensor *bias, opforge::Tensor &state, float s_fp16,
    float s_bf16, float s_fp32, double s_fp64, std::int8_t s_i8, std::int16_t s_i16,
    std::int32_t s_i32, std::int64_t s_i64, std::uint8_t s_u8, std::uint16_t s_u16,
    std::uint32_t s_u32, std::uint64_t s_u64, bool s_i1, everything_mode mode,
    opforge::Tensor &out, opforge::Tensor *stats, opforge::Stream stream = {})
{
    opforge::detail::check(::demo_everything(
        x.raw(), opforge::detail::raw(bias), state.raw(), s_fp16, s_bf16, s_fp32, s_fp64, s_i8,
        s_i16, s_i32, s_i64, s_u8, s_u16, s_u32, s_u64, s_i1,
        static_cast<::demo_everything_mode>(mode), out.raw(), opforge::detail::raw(stats),
        stream.get()), ::demo_last_error);
}

/* Type, shape, strides and device of the outputs of everything; no memory. */
inline std::tuple<opforge::Tensor, std::optional<opforge::Tensor>> everything_outputs(
    const opforge::Tensor &x, const opforge::Tensor *bias, const opforge::Tensor &state,
    float s_fp16, float s_bf16, float s_fp32, double s_fp64, std::int8_t s_i8,
    std::int16_t s_i16, std::int32_t s_i32, std::int64_t s_i64, std::uint8_t s_u8,
    std::uint16_t s_u16, std::uint32_t s_u32, std::uint64_t s_u64, bool s_i1,
    everything_mode mode)
{
    opforge::Tensor out;
    opforge::Tensor stats;
    opforge::detail::check(::demo_everything_outputs(
        x.raw(), opforge::detail::raw(bias), state.raw(), s_fp16, s_bf16, s_fp32, s_fp64, s_i8,
        s_i16, s_i32, s_i64, s_u8, s_u16, s_u32, s_u64, s_i1,
        static_cast<::demo_everything_mode>(mode), out.raw(), stats.raw()), ::demo_last_error);
    return std::tuple<opforge::Tensor, std::optional<opforge::Tensor>>(
        out, opforge::detail::present(stats));
}

/* Allocates the outputs. */
inline std::tuple<opforge::Output, std::optional<opforge::Output>> everything(
    const opforge::Tensor &x, const opforge::Tensor *bias, opforge::Tensor &state, float s_fp16,
    float s_bf16, float s_fp32, double s_fp64, std::int8_t s_i8, std::int16_t s_i16,
    std::int32_t s_i32, std::int64_t s_i64, std::uint8_t s_u8, std::uint16_t s_u16,
    std::uint32_t s_u32, std::uint64_t s_u64, bool s_i1, everything_mode mode,
    const opforge::Allocator &allocator, opforge::Stream stream = {})
{
    const auto of_described = ::demo::everything_outputs(
        x, bias, state, s_fp16, s_bf16, s_fp32, s_fp64, s_i8, s_i16, s_i32, s_i64, s_u8, s_u16,
        s_u32, s_u64, s_i1, mode);
    auto out = opforge::detail::made(
        std::get<0>(of_described), allocator, stream, "demo_everything: out");
    auto stats = opforge::detail::made(
        std::get<1>(of_described), allocator, stream, "demo_everything: stats");
    ::demo::everything(
        x, bias, state, s_fp16, s_bf16, s_fp32, s_fp64, s_i8, s_i16, s_i32, s_i64, s_u8, s_u16,
        s_u32, s_u64, s_i1, mode, out, opforge::detail::pointer(stats), stream);
    return std::tuple<opforge::Output, std::optional<opforge::Output>>(
        std::move(out), std::move(stats));
}

/* The bytes of workspace that everything would allocate; the tensors need no memory. */
inline std::int64_t everything_workspace(
    const opforge::Tensor &x, const opforge::Tensor *bias, const opforge::Tensor &state,
    float s_fp16, float s_bf16, float s_fp32, double s_fp64, std::int8_t s_i8,
    std::int16_t s_i16, std::int32_t s_i32, std::int64_t s_i64, std::uint8_t s_u8,
    std::uint16_t s_u16, std::uint32_t s_u32, std::uint64_t s_u64, bool s_i1,
    everything_mode mode, const opforge::Tensor *out = nullptr,
    const opforge::Tensor *stats = nullptr)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_everything_workspace(
        x.raw(), opforge::detail::raw(bias), state.raw(), s_fp16, s_bf16, s_fp32, s_fp64, s_i8,
        s_i16, s_i32, s_i64, s_u8, s_u16, s_u32, s_u64, s_i1,
        static_cast<::demo_everything_mode>(mode), opforge::detail::raw(out),
        opforge::detail::raw(stats), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* The same with a given implementation. */
inline void everything_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor *bias,
    opforge::Tensor &state, float s_fp16, float s_bf16, float s_fp32, double s_fp64,
    std::int8_t s_i8, std::int16_t s_i16, std::int32_t s_i32, std::int64_t s_i64,
    std::uint8_t s_u8, std::uint16_t s_u16, std::uint32_t s_u32, std::uint64_t s_u64, bool s_i1,
    everything_mode mode, opforge::Tensor &out, opforge::Tensor *stats,
    opforge::Stream stream = {})
{
    opforge::detail::check(::demo_everything_with(
        implementation, x.raw(), opforge::detail::raw(bias), state.raw(), s_fp16, s_bf16, s_fp32,
        s_fp64, s_i8, s_i16, s_i32, s_i64, s_u8, s_u16, s_u32, s_u64, s_i1,
        static_cast<::demo_everything_mode>(mode), out.raw(), opforge::detail::raw(stats),
        stream.get()), ::demo_last_error);
}

/* Type, shape, strides and device of the outputs of everything_with; no memory. */
inline std::tuple<opforge::Tensor, std::optional<opforge::Tensor>> everything_outputs_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor *bias,
    const opforge::Tensor &state, float s_fp16, float s_bf16, float s_fp32, double s_fp64,
    std::int8_t s_i8, std::int16_t s_i16, std::int32_t s_i32, std::int64_t s_i64,
    std::uint8_t s_u8, std::uint16_t s_u16, std::uint32_t s_u32, std::uint64_t s_u64, bool s_i1,
    everything_mode mode)
{
    opforge::Tensor out;
    opforge::Tensor stats;
    opforge::detail::check(::demo_everything_outputs_with(
        implementation, x.raw(), opforge::detail::raw(bias), state.raw(), s_fp16, s_bf16, s_fp32,
        s_fp64, s_i8, s_i16, s_i32, s_i64, s_u8, s_u16, s_u32, s_u64, s_i1,
        static_cast<::demo_everything_mode>(mode), out.raw(), stats.raw()), ::demo_last_error);
    return std::tuple<opforge::Tensor, std::optional<opforge::Tensor>>(
        out, opforge::detail::present(stats));
}

/* Allocates the outputs. */
inline std::tuple<opforge::Output, std::optional<opforge::Output>> everything_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor *bias,
    opforge::Tensor &state, float s_fp16, float s_bf16, float s_fp32, double s_fp64,
    std::int8_t s_i8, std::int16_t s_i16, std::int32_t s_i32, std::int64_t s_i64,
    std::uint8_t s_u8, std::uint16_t s_u16, std::uint32_t s_u32, std::uint64_t s_u64, bool s_i1,
    everything_mode mode, const opforge::Allocator &allocator, opforge::Stream stream = {})
{
    const auto of_described = ::demo::everything_outputs_with(
        implementation, x, bias, state, s_fp16, s_bf16, s_fp32, s_fp64, s_i8, s_i16, s_i32, s_i64,
        s_u8, s_u16, s_u32, s_u64, s_i1, mode);
    auto out = opforge::detail::made(
        std::get<0>(of_described), allocator, stream, "demo_everything: out");
    auto stats = opforge::detail::made(
        std::get<1>(of_described), allocator, stream, "demo_everything: stats");
    ::demo::everything_with(
        implementation, x, bias, state, s_fp16, s_bf16, s_fp32, s_fp64, s_i8, s_i16, s_i32, s_i64,
        s_u8, s_u16, s_u32, s_u64, s_i1, mode, out, opforge::detail::pointer(stats), stream);
    return std::tuple<opforge::Output, std::optional<opforge::Output>>(
        std::move(out), std::move(stats));
}

/* The bytes of workspace that everything_with would allocate; the tensors need no memory. */
inline std::int64_t everything_workspace_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor *bias,
    const opforge::Tensor &state, float s_fp16, float s_bf16, float s_fp32, double s_fp64,
    std::int8_t s_i8, std::int16_t s_i16, std::int32_t s_i32, std::int64_t s_i64,
    std::uint8_t s_u8, std::uint16_t s_u16, std::uint32_t s_u32, std::uint64_t s_u64, bool s_i1,
    everything_mode mode, const opforge::Tensor *out = nullptr,
    const opforge::Tensor *stats = nullptr)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_everything_workspace_with(
        implementation, x.raw(), opforge::detail::raw(bias), state.raw(), s_fp16, s_bf16, s_fp32,
        s_fp64, s_i8, s_i16, s_i32, s_i64, s_u8, s_u16, s_u32, s_u64, s_i1,
        static_cast<::demo_everything_mode>(mode), opforge::detail::raw(out),
        opforge::detail::raw(stats), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* In the order in which they are tried. */
inline opforge::Implementations everything_implementations()
{
    return opforge::Implementations(::demo_everything_implementations);
}

/* demo_special in demo.h says what it takes. */
inline void special(opforge::Tensor &x, special_what what, opforge::Stream stream = {})
{
    opforge::detail::check(::demo_special(
        x.raw(), static_cast<::demo_special_what>(what), stream.get()), ::demo_last_error);
}

/* The bytes of workspace that special would allocate; the tensors need no memory. */
inline std::int64_t special_workspace(const opforge::Tensor &x, special_what what)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_special_workspace(
        x.raw(), static_cast<::demo_special_what>(what), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* The same with a given implementation. */
inline void special_with(
    int implementation, opforge::Tensor &x, special_what what, opforge::Stream stream = {})
{
    opforge::detail::check(::demo_special_with(
        implementation, x.raw(), static_cast<::demo_special_what>(what),
        stream.get()), ::demo_last_error);
}

/* The bytes of workspace that special_with would allocate; the tensors need no memory. */
inline std::int64_t special_workspace_with(
    int implementation, const opforge::Tensor &x, special_what what)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_special_workspace_with(
        implementation, x.raw(), static_cast<::demo_special_what>(what),
        &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* In the order in which they are tried. */
inline opforge::Implementations special_implementations()
{
    return opforge::Implementations(::demo_special_implementations);
}

/* demo_pick in demo.h says what it takes. */
inline void pick(const opforge::Tensor &x, opforge::Tensor &out, opforge::Stream stream = {})
{
    opforge::detail::check(::demo_pick(x.raw(), out.raw(), stream.get()), ::demo_last_error);
}

/* Type, shape, strides and device of the outputs of pick; no memory. */
inline opforge::Tensor pick_outputs(const opforge::Tensor &x)
{
    opforge::Tensor out;
    opforge::detail::check(::demo_pick_outputs(x.raw(), out.raw()), ::demo_last_error);
    return out;
}

/* Allocates the outputs. */
inline opforge::Output pick(
    const opforge::Tensor &x, const opforge::Allocator &allocator, opforge::Stream stream = {})
{
    const auto of_described = ::demo::pick_outputs(x);
    auto out = opforge::detail::made(of_described, allocator, stream, "demo_pick: out");
    ::demo::pick(x, out, stream);
    return out;
}

/* The bytes of workspace that pick would allocate; the tensors need no memory. */
inline std::int64_t pick_workspace(
    const opforge::Tensor &x, const opforge::Tensor *out = nullptr)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_pick_workspace(
        x.raw(), opforge::detail::raw(out), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* The same with a given implementation. */
inline void pick_with(
    int implementation, const opforge::Tensor &x, opforge::Tensor &out,
    opforge::Stream stream = {})
{
    opforge::detail::check(::demo_pick_with(
        implementation, x.raw(), out.raw(), stream.get()), ::demo_last_error);
}

/* Type, shape, strides and device of the outputs of pick_with; no memory. */
inline opforge::Tensor pick_outputs_with(int implementation, const opforge::Tensor &x)
{
    opforge::Tensor out;
    opforge::detail::check(::demo_pick_outputs_with(
        implementation, x.raw(), out.raw()), ::demo_last_error);
    return out;
}

/* Allocates the outputs. */
inline opforge::Output pick_with(
    int implementation, const opforge::Tensor &x, const opforge::Allocator &allocator,
    opforge::Stream stream = {})
{
    const auto of_described = ::demo::pick_outputs_with(implementation, x);
    auto out = opforge::detail::made(of_described, allocator, stream, "demo_pick: out");
    ::demo::pick_with(implementation, x, out, stream);
    return out;
}

/* The bytes of workspace that pick_with would allocate; the tensors need no memory. */
inline std::int64_t pick_workspace_with(
    int implementation, const opforge::Tensor &x, const opforge::Tensor *out = nullptr)
{
    std::int64_t of_bytes = 0;
    opforge::detail::check(::demo_pick_workspace_with(
        implementation, x.raw(), opforge::detail::raw(out), &of_bytes), ::demo_last_error);
    return of_bytes;
}

/* In the order in which they are tried. */
inline opforge::Implementations pick_implementations()
{
    return opforge::Implementations(::demo_pick_implementations);
}

} // namespace demo

#endif
