/* Lets a program that is not Python run its launches in one that is.
 *
 * $STANDIN_SERVER is a socket to which launches are sent, and $STANDIN_MEMORY a file that both
 * sides map at the same address, so that pointers mean the same to both. Per launch:
 *
 *     to the server    the number of bytes of the image, grid, cluster; the image
 *     from it          the number of parameters, and the size of each
 *     to the server    the parameters' bytes, one after the other
 *     from it          the launch's result
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "standin.h"

#define ADDRESS ((char *)0x100000000000)
#define MAX_PARAMETERS 256
#define LAUNCH_FAILED 719

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int server = -1;
static size_t used;
static size_t size;

static int send_all(const void *data, size_t bytes)
{
    const char *at = (const char *)data;
    while (bytes > 0) {
        const ssize_t sent = write(server, at, bytes);
        if (sent <= 0) {
            return 0;
        }
        at += sent;
        bytes -= (size_t)sent;
    }
    return 1;
}

static int receive_all(void *data, size_t bytes)
{
    char *at = (char *)data;
    while (bytes > 0) {
        const ssize_t received = read(server, at, bytes);
        if (received <= 0) {
            return 0;
        }
        at += received;
        bytes -= (size_t)received;
    }
    return 1;
}

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0) {
        value = value << 8 | at[bytes];
    }
    return value;
}

/* A cubin ends in its section table or in its program headers, PTX in a zero. */
size_t standin_image_size(const void *image)
{
    const unsigned char *header = (const unsigned char *)image;
    uint64_t sections;
    uint64_t segments;
    if (memcmp(header, "\177ELF", 4) != 0) {
        return strlen((const char *)image);
    }
    sections = number(header + 40, 8) + number(header + 58, 2) * number(header + 60, 2);
    segments = number(header + 32, 8) + number(header + 54, 2) * number(header + 56, 2);
    return sections > segments ? sections : segments;
}

static int run(const LaunchRecord *launch)
{
    const uint64_t header[5] = {standin_image_size(launch->image), launch->grid[0], launch->grid[1],
                                launch->grid[2], launch->cluster};
    int32_t sizes[MAX_PARAMETERS];
    int32_t count;
    int32_t result;
    int32_t i;
    if (!send_all(header, sizeof header) || !send_all(launch->image, header[0]) ||
        !receive_all(&count, sizeof count) || count > MAX_PARAMETERS ||
        !receive_all(sizes, (size_t)count * sizeof *sizes)) {
        return LAUNCH_FAILED;
    }
    for (i = 0; i < count; i++) {
        if (!send_all(launch->parameters[i], (size_t)sizes[i])) {
            return LAUNCH_FAILED;
        }
    }
    return receive_all(&result, sizeof result) ? result : LAUNCH_FAILED;
}

static int launched(const LaunchRecord *launch)
{
    int result;
    pthread_mutex_lock(&lock);
    result = run(launch);
    pthread_mutex_unlock(&lock);
    return result;
}

static void *take(size_t bytes)
{
    char *taken = NULL;
    pthread_mutex_lock(&lock);
    if (bytes <= size - used) {
        taken = ADDRESS + used;
        used += (bytes + 511) / 512 * 512;
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

__attribute__((constructor)) static void connect_to_server(void)
{
    const char *path = getenv("STANDIN_SERVER");
    const char *memory = getenv("STANDIN_MEMORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat file;
    int descriptor;
    if (path == NULL || memory == NULL || strlen(path) >= sizeof address.sun_path) {
        return;
    }
    strcpy(address.sun_path, path);
    server = socket(AF_UNIX, SOCK_STREAM, 0);
    descriptor = open(memory, O_RDWR);
    if (descriptor < 0 || fstat(descriptor, &file) != 0 ||
        connect(server, (struct sockaddr *)&address, sizeof address) != 0 ||
        mmap(ADDRESS, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             descriptor, 0) != ADDRESS) {
        return;
    }
    size = (size_t)file.st_size;
    standin_on_launch(launched);
    standin_allocate_with(take);
}
