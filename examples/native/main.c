/* Calls the library that `opforge build` makes from ops.py, and checks its results.
 *
 * The library takes tensors in GPU memory, whoever allocated it. Here the driver does; it is opened
 * at run time, so that compiling this program needs no CUDA toolkit.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ops.h>

enum { CUDA = 2, FLOAT = 2, MAJOR = 75, MINOR = 76 };

static struct {
    int (*init)(unsigned int flags);
    int (*device_count)(int *count);
    int (*device_name)(char *name, int length, int device);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*synchronize)(void);
    int (*allocate)(uint64_t *address, size_t bytes);
    int (*release)(uint64_t address);
    int (*upload)(uint64_t target, const void *source, size_t bytes);
    int (*download)(void *target, uint64_t source, size_t bytes);
} cuda;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* Status of the driver. */
static void expect(int result, const char *what)
{
    char text[32];
    if (result != 0) {
        snprintf(text, sizeof text, "CUDA error %d", result);
        fail(what, text);
    }
}

/* Status of the library. */
static void expect_ok(OpforgeStatus status, const char *what)
{
    if (status != OPFORGE_OK) {
        fail(what, ops_last_error());
    }
}

static void find(void *driver, const char *name, void *function)
{
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fail(name, "not in libcuda.so.1");
    }
    memcpy(function, &found, sizeof found);
}

static void open_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fail("no CUDA driver", dlerror());
    }
    find(driver, "cuInit", &cuda.init);
    find(driver, "cuDeviceGetCount", &cuda.device_count);
    find(driver, "cuDeviceGetName", &cuda.device_name);
    find(driver, "cuDeviceGetAttribute", &cuda.device_attribute);
    find(driver, "cuDevicePrimaryCtxRetain", &cuda.retain);
    find(driver, "cuCtxSetCurrent", &cuda.set_current);
    find(driver, "cuCtxSynchronize", &cuda.synchronize);
    find(driver, "cuMemAlloc_v2", &cuda.allocate);
    find(driver, "cuMemFree_v2", &cuda.release);
    find(driver, "cuMemcpyHtoD_v2", &cuda.upload);
    find(driver, "cuMemcpyDtoH_v2", &cuda.download);
    expect(cuda.init(0), "cuInit");
}

/* A tensor with room for its own sizes. */
typedef struct {
    OpforgeTensor tensor;
    int64_t shape[OPFORGE_MAX_RANK];
    int64_t strides[OPFORGE_MAX_RANK];
} Matrix;

static size_t count(const Matrix *matrix)
{
    size_t product = 1;
    int i;
    for (i = 0; i < matrix->tensor.ndim; i++) {
        product *= (size_t)matrix->shape[i];
    }
    return product;
}

static void allocate(Matrix *matrix)
{
    uint64_t address;
    expect(cuda.allocate(&address, count(matrix) * sizeof(float)), "cuMemAlloc");
    matrix->tensor.data = (void *)(uintptr_t)address;
}

static void release(Matrix *matrix)
{
    expect(cuda.release((uint64_t)(uintptr_t)matrix->tensor.data), "cuMemFree");
}

/* A contiguous fp32 matrix on device 0, or a vector if `rows` is 0; returns a copy on the host. */
static float *fill(Matrix *matrix, int64_t rows, int64_t columns, float step)
{
    float *values;
    size_t i;
    memset(matrix, 0, sizeof *matrix);
    matrix->tensor.device.device_type = CUDA;
    matrix->tensor.dtype.code = FLOAT;
    matrix->tensor.dtype.bits = 32;
    matrix->tensor.dtype.lanes = 1;
    matrix->tensor.ndim = rows > 0 ? 2 : 1;
    matrix->shape[0] = rows > 0 ? rows : columns;
    matrix->shape[1] = columns;
    matrix->tensor.shape = matrix->shape;
    allocate(matrix);
    values = (float *)malloc(count(matrix) * sizeof *values);
    for (i = 0; i < count(matrix); i++) {
        values[i] = sinf((float)i * step) * 3;
    }
    expect(cuda.upload((uint64_t)(uintptr_t)matrix->tensor.data, values,
                       count(matrix) * sizeof *values),
           "cuMemcpyHtoD");
    return values;
}

/* For `_outputs` to fill in: shape and strides have room for the largest rank. */
static void prepare(Matrix *matrix)
{
    memset(matrix, 0, sizeof *matrix);
    matrix->tensor.shape = matrix->shape;
    matrix->tensor.strides = matrix->strides;
}

/* Prints the largest difference, and returns whether it is small. */
static int agree(const char *name, const Matrix *out, const float *expected)
{
    const size_t number = count(out);
    float *found = (float *)malloc(number * sizeof *found);
    float worst = 0;
    int good = 1;
    size_t i;
    expect(cuda.synchronize(), "cuCtxSynchronize");
    expect(cuda.download(found, (uint64_t)(uintptr_t)out->tensor.data, number * sizeof *found),
           "cuMemcpyDtoH");
    for (i = 0; i < number; i++) {
        const float difference = fabsf(found[i] - expected[i]);
        worst = difference > worst ? difference : worst;
        /* False for NaN as well. */
        good &= difference <= 1e-5f;
    }
    free(found);
    printf("%-9s [%lld, %lld]: largest error %.1e\n", name, (long long)out->shape[0],
           (long long)out->shape[1], (double)worst);
    return good;
}

static int check_silu(int64_t rows, int64_t columns)
{
    Matrix x;
    Matrix out;
    float *values = fill(&x, rows, columns, 0.7f);
    size_t i;
    int good;
    prepare(&out);
    expect_ok(ops_silu_outputs(&x.tensor, &out.tensor), "ops_silu_outputs");
    allocate(&out);
    expect_ok(ops_silu(&x.tensor, &out.tensor, NULL), "ops_silu");
    for (i = 0; i < count(&x); i++) {
        values[i] = values[i] / (1 + expf(-values[i]));
    }
    good = agree("silu", &out, values);
    free(values);
    release(&x);
    release(&out);
    return good;
}

static int check_rms_norm(int64_t rows, int64_t hidden, float eps)
{
    Matrix x;
    Matrix weight;
    Matrix out;
    float *values = fill(&x, rows, hidden, 0.3f);
    float *weights = fill(&weight, 0, hidden, 1.1f);
    int64_t i;
    int64_t j;
    int good;
    prepare(&out);
    expect_ok(ops_rms_norm_outputs(&x.tensor, &weight.tensor, eps, &out.tensor),
              "ops_rms_norm_outputs");
    allocate(&out);
    expect_ok(ops_rms_norm(&x.tensor, &weight.tensor, eps, &out.tensor, NULL), "ops_rms_norm");
    for (i = 0; i < rows; i++) {
        float *row = values + i * hidden;
        double squares = 0;
        for (j = 0; j < hidden; j++) {
            squares += (double)row[j] * row[j];
        }
        for (j = 0; j < hidden; j++) {
            row[j] = (float)(row[j] / sqrt(squares / (double)hidden + eps)) * weights[j];
        }
    }
    good = agree("rms_norm", &out, values);
    free(values);
    free(weights);
    release(&x);
    release(&weight);
    release(&out);
    return good;
}

/* A call with wrong arguments launches nothing, and says why. */
static int check_refusal(void)
{
    Matrix x;
    Matrix weight;
    OpforgeStatus status;
    free(fill(&x, 2, 8, 1));
    free(fill(&weight, 0, 7, 1));
    status = ops_rms_norm(&x.tensor, &weight.tensor, 0, &x.tensor, NULL);
    printf("refused   %s\n", ops_last_error());
    release(&x);
    release(&weight);
    return status == OPFORGE_INVALID_ARGUMENT;
}

static void describe(void)
{
    const char *manifest = ops_manifest();
    const char *arch = strstr(manifest, "sm_");
    int devices = 0;
    int device;
    printf("library   ABI %d, manifest of %zu bytes, kernels for %.*s\n", ops_abi_version(),
           strlen(manifest), (int)strcspn(arch, "\""), arch);
    expect(cuda.device_count(&devices), "cuDeviceGetCount");
    for (device = 0; device < devices; device++) {
        char name[128];
        int major;
        int minor;
        expect(cuda.device_name(name, sizeof name, device), "cuDeviceGetName");
        expect(cuda.device_attribute(&major, MAJOR, device), "cuDeviceGetAttribute");
        expect(cuda.device_attribute(&minor, MINOR, device), "cuDeviceGetAttribute");
        printf("device %d  %s, sm_%d%d\n", device, name, major, minor);
    }
}

int main(void)
{
    void *context;
    int good;
    open_driver();
    describe();
    expect(cuda.retain(&context, 0), "cuDevicePrimaryCtxRetain");
    expect(cuda.set_current(context), "cuCtxSetCurrent");
    expect_ok(ops_load(0), "ops_load");
    good = check_silu(7, 1000);
    good &= check_silu(1, 1);
    good &= check_rms_norm(5, 300, 1e-6f);
    good &= check_rms_norm(2, 4096, 0.5f);
    good &= check_refusal();
    expect_ok(ops_unload(0), "ops_unload");
    puts(good ? "all results are correct" : "a result is wrong");
    return good ? 0 : 1;
}
