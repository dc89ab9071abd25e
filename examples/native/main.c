/* Calls the library that `opforge build` makes from ops.py, and checks its results.
 *
 * The library takes tensors in GPU memory, whoever allocated it. Here the driver does; it is opened
 * at run time, so that compiling this program needs neither CUDA nor ROCm.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ops.h>

enum { CUDA = 2, ROCM = 10, FLOAT = 2 };

/* What this program needs of NVIDIA's driver or AMD's. */
static struct {
    int device_type;
    int (*init)(unsigned int flags);
    int (*device_count)(int *count);
    int (*device_name)(char *name, int length, int device);
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*synchronize)(void);
    int (*allocate)(uint64_t *address, size_t bytes);
    int (*release)(uint64_t address);
    int (*upload)(uint64_t target, const void *source, size_t bytes);
    int (*download)(void *target, uint64_t source, size_t bytes);
} driver;

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
        snprintf(text, sizeof text, "error %d", result);
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

static void find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fail(name, "not in the driver");
    }
    memcpy(function, &found, sizeof found);
}

static void find_cuda(void *library)
{
    driver.device_type = CUDA;
    find(library, "cuInit", &driver.init);
    find(library, "cuDeviceGetCount", &driver.device_count);
    find(library, "cuDeviceGetName", &driver.device_name);
    find(library, "cuDevicePrimaryCtxRetain", &driver.retain);
    find(library, "cuCtxSetCurrent", &driver.set_current);
    find(library, "cuCtxSynchronize", &driver.synchronize);
    find(library, "cuMemAlloc_v2", &driver.allocate);
    find(library, "cuMemFree_v2", &driver.release);
    find(library, "cuMemcpyHtoD_v2", &driver.upload);
    find(library, "cuMemcpyDtoH_v2", &driver.download);
}

/* The first device is current in every thread. */
static void find_hip(void *library)
{
    driver.device_type = ROCM;
    find(library, "hipInit", &driver.init);
    find(library, "hipGetDeviceCount", &driver.device_count);
    find(library, "hipDeviceGetName", &driver.device_name);
    find(library, "hipDeviceSynchronize", &driver.synchronize);
    find(library, "hipMalloc", &driver.allocate);
    find(library, "hipFree", &driver.release);
    find(library, "hipMemcpyHtoD", &driver.upload);
    find(library, "hipMemcpyDtoH", &driver.download);
}

static void open_driver(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    void *hip = cuda == NULL ? dlopen("libamdhip64.so", RTLD_NOW) : NULL;
    if (cuda != NULL) {
        find_cuda(cuda);
    } else if (hip != NULL) {
        find_hip(hip);
    } else {
        fail("no driver", "neither libcuda.so.1 nor libamdhip64.so can be opened");
    }
    expect(driver.init(0), "initialization of the driver");
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
    expect(driver.allocate(&address, count(matrix) * sizeof(float)), "allocation");
    matrix->tensor.data = (void *)(uintptr_t)address;
}

static void release(Matrix *matrix)
{
    expect(driver.release((uint64_t)(uintptr_t)matrix->tensor.data), "release");
}

/* A contiguous fp32 matrix on device 0, or a vector if `rows` is 0; returns a copy on the host. */
static float *fill(Matrix *matrix, int64_t rows, int64_t columns, float step)
{
    float *values;
    size_t i;
    memset(matrix, 0, sizeof *matrix);
    matrix->tensor.device.device_type = driver.device_type;
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
    expect(driver.upload((uint64_t)(uintptr_t)matrix->tensor.data, values,
                         count(matrix) * sizeof *values),
           "copy to the GPU");
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
    expect(driver.synchronize(), "synchronization");
    expect(driver.download(found, (uint64_t)(uintptr_t)out->tensor.data, number * sizeof *found),
           "copy from the GPU");
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
    int devices = 0;
    int device;
    printf("library   ABI %d, manifest of %zu bytes\n", ops_abi_version(), strlen(ops_manifest()));
    expect(driver.device_count(&devices), "count of devices");
    for (device = 0; device < devices; device++) {
        char name[128];
        expect(driver.device_name(name, sizeof name, device), "name of a device");
        printf("device %d  %s\n", device, name);
    }
}

int main(void)
{
    void *context;
    int good;
    open_driver();
    describe();
    if (driver.retain != NULL) {
        expect(driver.retain(&context, 0), "cuDevicePrimaryCtxRetain");
        expect(driver.set_current(context), "cuCtxSetCurrent");
    }
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
