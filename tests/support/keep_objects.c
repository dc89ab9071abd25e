/* keep_objects FOLDER COMPILER ...: run the compiler, unless FOLDER has its output from before.
 *
 * Many libraries that tests build are the same, and every served folder has the same extension.
 * Nothing is optimized, which halves the time that is left, unless warnings are errors: some need
 * what the optimizer finds out. As a shell script this took 9 ms per call, and a test run has
 * 4,000.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096, ROOM = 8192 };

/* All that the output depends on: the compiler, its options, and the inputs with their headers. */
typedef struct {
    unsigned __int128 key;
    int is_unknown; /* whether it depends on what is not seen here */
    int has_piped;  /* whether a source comes from the standard input */
    const char *target;
    const char *sources[MOST];
    int source_count;
    const char *folders[MOST];
    int folder_count;
    char *read[MOST];
    int read_count;
} Inputs;

static void add_bytes(Inputs *to, const char *bytes, size_t count)
{
    /* FNV-1a */
    const unsigned __int128 prime = ((unsigned __int128)1 << 88) + 0x13b;
    for (size_t i = 0; i < count; i++) {
        to->key = (to->key ^ (unsigned char)bytes[i]) * prime;
    }
}

static char *read_whole(const char *path, size_t *size)
{
    struct stat found;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) {
        if (file >= 0) {
            close(file);
        }
        return NULL;
    }
    char *text = malloc((size_t)found.st_size + 1);
    size_t done = 0;
    ssize_t got;
    while ((got = read(file, text + done, (size_t)found.st_size - done)) > 0) {
        done += (size_t)got;
    }
    close(file);
    text[done] = '\0';
    *size = done;
    return text;
}

static void add_file(Inputs *to, const char *path);

/* `name` as `file` includes it, where it is found first; the system's headers do not change. */
static void add_header(Inputs *to, const char *file, const char *name, int is_quoted)
{
    char path[ROOM];
    const char *slash = strrchr(file, '/');
    int own = slash == NULL ? 0 : (int)(slash - file) + 1;
    for (int i = is_quoted ? -1 : 0; i < to->folder_count; i++) {
        if (i < 0) {
            snprintf(path, sizeof path, "%.*s%s", own, file, name);
        } else {
            snprintf(path, sizeof path, "%s/%s", to->folders[i], name);
        }
        if (access(path, R_OK) == 0) {
            add_file(to, path);
            return;
        }
    }
}

static void add_headers(Inputs *to, const char *file, const char *text)
{
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        char name[ROOM];
        line += strspn(line, " \t\n");
        if (*line != '#') {
            continue;
        }
        line += 1 + strspn(line + 1, " \t");
        if (strncmp(line, "include", 7) != 0) {
            continue;
        }
        line += 7 + strspn(line + 7, " \t");
        if (*line != '"' && *line != '<') {
            to->is_unknown = 1;
            continue;
        }
        size_t length = strcspn(line + 1, "\">\n");
        if (length < sizeof name) {
            memcpy(name, line + 1, length);
            name[length] = '\0';
            add_header(to, file, name, *line == '"');
        }
    }
}

static void add_file(Inputs *to, const char *path)
{
    size_t size = 0;
    for (int i = 0; i < to->read_count; i++) {
        if (strcmp(to->read[i], path) == 0) {
            return;
        }
    }
    char *text = read_whole(path, &size);
    if (text == NULL || to->read_count == MOST) {
        to->is_unknown = 1;
        return;
    }
    to->read[to->read_count++] = strdup(path);
    add_bytes(to, (char *)&size, sizeof size);
    add_bytes(to, text, size);
    /* An object has zero bytes. */
    if (strlen(text) == size) {
        to->is_unknown |= strstr(text, ".incbin") != NULL;
        add_headers(to, path, text);
    }
    free(text);
}

/* The source that is piped in. Its compiler reads it from a file, from the beginning. */
static void add_piped(Inputs *to)
{
    char part[ROOM] = "";
    size_t size = 0;
    ssize_t got;
    int file = memfd_create("source", 0);
    while ((got = read(0, part, sizeof part - 1)) > 0) {
        part[got] = '\0';
        add_bytes(to, part, (size_t)got);
        size += (size_t)write(file, part, (size_t)got);
    }
    /* One that does not come at once may have a header in two parts. */
    to->is_unknown |= size == 0 || size != strlen(part);
    add_headers(to, "", part);
    lseek(file, 0, SEEK_SET);
    dup2(file, 0);
    to->has_piped = 1;
}

static int ends_with(const char *text, const char *ending)
{
    size_t length = strlen(text), rest = strlen(ending);
    return length >= rest && strcmp(text + length - rest, ending) == 0;
}

static void add_folder(Inputs *to, const char *folder)
{
    if (!ends_with(folder, "/torch/include") && strncmp(folder, "/usr/", 5) != 0) {
        to->folders[to->folder_count++] = folder;
    }
}

static int copy(const char *from, const char *to)
{
    struct stat found;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &found) != 0) {
        return -1;
    }
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, found.st_mode & 0777);
    off_t done = 0;
    while (out >= 0 && done < found.st_size) {
        if (sendfile(out, in, &done, (size_t)(found.st_size - done)) <= 0) {
            break;
        }
    }
    close(in);
    return out >= 0 && close(out) == 0 && done == found.st_size ? 0 : -1;
}

/* What a command prints, and its exit status; `said` is freed by nobody. */
static int run(char **command, char **said, size_t *length)
{
    int ends[2], status;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return 1;
    }
    pid_t process = fork();
    if (process == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        execvp(command[0], command);
        _exit(127);
    }
    close(ends[1]);
    size_t room = 0;
    *length = 0;
    for (;;) {
        if (room - *length < ROOM) {
            room = 2 * room + ROOM;
            *said = realloc(*said, room);
        }
        ssize_t got = read(ends[0], *said + *length, room - *length);
        if (got <= 0) {
            break;
        }
        *length += (size_t)got;
    }
    waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int is_option(const char *option, const char *start)
{
    return strncmp(option, start, strlen(start)) == 0;
}

static void add_option(Inputs *to, const char *before, char *option)
{
    if (strcmp(before, "-o") == 0) {
        to->target = option;
        return;
    }
    add_bytes(to, option, strlen(option) + 1);
    if (strcmp(option, "-") == 0) {
        add_piped(to);
        return;
    }
    /* Files that a linker finds by itself are not known here. */
    to->is_unknown |= is_option(option, "-L") || is_option(option, "@");
    to->is_unknown |= is_option(option, "-Wl,") && strchr(option, '/') != NULL;
    /* With -M the compiler writes a second file. */
    to->is_unknown |= is_option(option, "-M");
    if (strcmp(before, "-I") == 0 || strcmp(before, "-isystem") == 0) {
        add_folder(to, option);
    } else if (is_option(option, "-I") && option[2] != '\0') {
        add_folder(to, option + 2);
    } else if (option[0] != '-' && access(option, R_OK) == 0 && to->source_count < MOST) {
        to->sources[to->source_count++] = option;
    } else if (strcmp(before, "-include") == 0) {
        to->is_unknown = 1;
    }
}

static int compile(char **command, const char *target, const char *kept)
{
    char written[ROOM + 16], *said = NULL;
    size_t length = 0;
    int status = run(command, &said, &length);
    /* What the compiler says must be said each time, so such an output is not kept. */
    if (status != 0 || length > 0) {
        fwrite(said, 1, length, stderr);
        return status;
    }
    snprintf(written, sizeof written, "%s.%d", kept, (int)getpid());
    if (copy(target, written) == 0) {
        rename(written, kept);
    }
    return 0;
}

int main(int count, char **arguments)
{
    static Inputs inputs;
    char **command = calloc((size_t)count + 2, sizeof *command), kept[ROOM];
    int used = 0, is_strict = 0, i;
    for (i = 2; i < count; i++) {
        is_strict |= strcmp(arguments[i], "-Werror") == 0;
        command[used++] = arguments[i];
    }
    if (!is_strict) {
        command[used++] = "-O0";
    }
    add_bytes(&inputs, command[0], strlen(command[0]) + 1);
    for (i = 1; i < used; i++) {
        add_option(&inputs, command[i - 1], command[i]);
    }
    inputs.is_unknown |= inputs.source_count + inputs.has_piped == 0 || inputs.target == NULL;
    for (i = 0; !inputs.is_unknown && i < inputs.source_count; i++) {
        add_file(&inputs, inputs.sources[i]);
    }
    if (inputs.is_unknown) {
        execvp(command[0], command);
        return 127;
    }
    mkdir(arguments[1], 0777);
    snprintf(kept, sizeof kept, "%s/%016llx%016llx", arguments[1],
             (unsigned long long)(inputs.key >> 64), (unsigned long long)inputs.key);
    if (access(kept, R_OK) != 0) {
        return compile(command, inputs.target, kept);
    }
    /* As linkers do: a process may have the old one loaded. */
    unlink(inputs.target);
    return copy(kept, inputs.target) == 0 ? 0 : 1;
}
